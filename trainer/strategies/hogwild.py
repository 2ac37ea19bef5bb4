"""Hogwild: processes that update one model in shared memory, without locks."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from trainer.core.strategy import Strategy

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.training.session import Session
    from trainer.training.task import Task


class Hogwild(Strategy):
    """Update one model in shared memory from several processes without locks (Recht et al. 2011).

    Every rank reads and writes the same weights in shared memory at any time, without locks. Each rank
    keeps its own gradient and optimizer state. The operating system decides the order of the updates, so
    equal seeds do not give equal weights.

    Source: Recht, Ré, Wright and Niu 2011, "Hogwild!", Alg. 1.
    """

    transports: ClassVar[tuple[str, ...]] = ("memory",)
    virtual: ClassVar[bool] = False
    equivalent: ClassVar[str | None] = "async_parameter_server"
    forks: ClassVar[bool] = True
    shares_model: ClassVar[bool] = True
    exchanges_in_steps: ClassVar[bool] = False
    evaluates_together: ClassVar[bool] = False
    untraced: ClassVar[str | None] = "its ranks share memory and exchange nothing that a trace could show"
    deterministic: ClassVar[bool] = False
    averages: ClassVar[bool] = False
    caveat: ClassVar[str | None] = (
        "one machine only: its ranks share memory, nothing crosses a link, "
        "and equal seeds do not give equal weights"
    )

    @property
    def updates_use_global_batch(self) -> bool:
        return False

    def shared_state(self, task: Task) -> list[Tensor]:
        """Parameters and buffers in shared memory."""
        model = task.build_model(rank=0).share_memory()
        return [*model.parameters(), *model.buffers()]

    def train(self, session: Session) -> None:
        replica = session.replica()
        replica.use_shared_weights(session.shared)
        session.start(replica)
        for epoch in session.epochs(evaluate="local"):
            for batch in session.batches(epoch):
                replica.backward(batch)
                replica.step()
