"""Averages gradients every H steps, and takes local steps between them."""

from typing import Any, ClassVar

from pydantic import Field

from shardyard import Strategy


class MyLocalSGD(Strategy):
    """Average every H local steps."""

    transports: ClassVar[tuple[str, ...]] = ("gloo", "mpi", "rpc", "memory")

    local_steps: int = Field(10, ge=1, description="H: steps between two averages")

    def train(self, session: Any) -> None:
        """Train to the end of the run."""
        replica = session.replica()
        session.start(replica, init="broadcast")
        steps = 0
        for epoch in session.epochs(evaluate="average"):
            for batch in session.synchronous_batches(epoch, "join"):
                steps += 1
                if batch.samples:
                    replica.backward(batch)
                if steps % self.local_steps == 0:
                    gradient = session.comm.weighted_mean(replica.gradient(), batch.samples)
                    replica.set_gradient(gradient)
                if batch.samples or steps % self.local_steps == 0:
                    replica.step()
        replica.set_weights(session.comm.weighted_mean(replica.weights(), 1))
