"""Strategies with a server that applies what workers push when it arrives."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from trainer.core.strategy import Interval, Strategy


class Served(Strategy):
    """Rank 0 is a server, and applies what the other ranks push in the order of arrival."""

    transports: ClassVar[tuple[str, ...]] = ("rpc",)
    min_nodes: ClassVar[int] = 2
    servers: ClassVar[int] = 1
    # At the end of an epoch nothing is on its way.
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs",)
    deterministic: ClassVar[bool] = False
    averages: ClassVar[bool] = False

    @property
    def updates_use_global_batch(self) -> bool:
        return False

    def train(self, session: Any) -> None:
        replica = session.replica()
        session.start(replica)
        (self.serve if session.is_server else self.work)(session, replica)

    @abstractmethod
    def serve(self, session: Any, replica: Any) -> None:
        """Hold the model, as rank 0, to the end of the run."""

    @abstractmethod
    def work(self, session: Any, replica: Any) -> None:
        """Compute and push, as any other rank, to the end of the run."""
