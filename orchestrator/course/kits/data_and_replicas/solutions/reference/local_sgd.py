"""Local SGD."""

from typing import Any, ClassVar

from pydantic import Field

from shardyard import Strategy


class MyLocalSGD(Strategy):
    """Average the weights every H local steps."""

    transports: ClassVar[tuple[str, ...]] = ("gloo", "mpi", "rpc", "memory")

    local_steps: int = Field(10, ge=1, description="H: steps between two averages")

    def train(self, session: Any) -> None:
        """Train to the end of the run."""
        replica = session.replica()
        session.start(replica, init="broadcast")
        steps = 0
        for epoch in session.epochs(evaluate="average"):
            for batch in session.synchronous_batches(epoch, "join"):
                if batch.samples:
                    replica.backward(batch)
                    replica.step()
                steps += 1
                if steps == self.local_steps:
                    self._average(session, replica)
                    steps = 0
        if steps:
            self._average(session, replica)

    def _average(self, session: Any, replica: Any) -> None:
        weight = session.averaging_weight("size")
        replica.set_weights(session.comm.weighted_mean(replica.weights(), weight))
        session.averaged()
