"""DiLoCo: local steps with one optimiser, and a second one that takes their sum for a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import Strategy, Uneven

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.training.session import Session


class DiLoCo(Strategy):
    """Take an outer step along the mean change of H inner steps (Douillard et al. 2023).

    Every node takes `local_steps` (H) steps with the run's optimiser (the paper: adamw), whose state it
    keeps. How far the nodes have come on average is the outer gradient, and all take the same outer step
    along it, with Nesterov momentum. With outer_lr 1 and outer_momentum 0 it is `local_sgd`; on one node
    it is therefore serial training only then, and otherwise Lookahead with momentum. A round that the end
    of the run cuts short ends with an outer step too; one that a target accuracy cuts short, with the
    average that has reached it.

    The outer step moves parameters; buffers (BatchNorm's statistics) become their average.

    Source: Douillard et al. 2023, "Distributed Low-Communication Training", Alg. 1.
    """

    transports: ClassVar[tuple[str, ...]] = ("mpi", "gloo", "rpc", "memory", "nccl")

    local_steps: int = Field(
        10, ge=1, description="H: inner steps between two outer ones; the paper's is 500"
    )
    outer_lr: float = Field(0.7, gt=0, le=10, description="learning rate of the outer step")
    outer_momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum of the outer step")
    uneven: Uneven = "join"

    def train(self, session: Session) -> None:
        replica = session.replica()
        session.start(replica)
        start = replica.weights()  # of the round, the same on all nodes
        velocity = start.new_zeros(replica.parameter_count)
        steps = 0  # in this round
        for epoch in session.epochs(evaluate="average"):
            for batch in session.synchronous_batches(epoch, self.uneven):
                if batch.share:
                    replica.backward(batch)
                    replica.step()
                steps += 1
                last = epoch == session.spec.epochs and batch.step == batch.steps
                if steps == self.local_steps or last:
                    mean = session.mean_weights(replica)
                    with session.clock.phase("compute"):
                        self.outer_step(
                            start[: replica.parameter_count], mean[: replica.parameter_count], velocity
                        )
                        start[replica.parameter_count :] = mean[replica.parameter_count :]
                        replica.set_weights(start)
                    steps = 0
        if steps:  # the target was reached within a round, by the average
            replica.set_weights(session.mean_weights(replica))

    def outer_step(self, start: Tensor, mean: Tensor, velocity: Tensor) -> None:
        """Move `start` by one step of SGD with Nesterov momentum, in place. All of shape (parameters,)."""
        gradient = start - mean
        velocity.mul_(self.outer_momentum).add_(gradient)
        start.sub_(gradient.add_(velocity, alpha=self.outer_momentum), alpha=self.outer_lr)
