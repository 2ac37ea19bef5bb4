"""Task 3: local SGD, which averages the weights of all ranks every H steps (Stich 2019, Alg. 1).

Write `MyLocalSGD.train`. The same class works in a sweep: `strategy: ./local_sgd.py:MyLocalSGD`. `train`
gets a session, of which it needs this much:

    session.replica()                           this rank's copy of the model
    session.start(replica, init="broadcast")    before training: all ranks start from equal weights
    session.epochs(evaluate="average")          the numbers of the epochs
    session.synchronous_batches(epoch, "join")  this rank's batches; every rank gets equally many
    batch.samples                               samples in a batch: 0 if this rank has none left
    replica.backward(batch)                     compute the gradient of the batch's mean loss
    replica.step()                              one step of SGD with this gradient
    replica.weights()                           all weights, shape (d,)
    replica.set_weights(weights)                replace them
    session.averaging_weight("size")            samples that this rank has trained on since the last average
    session.comm.weighted_mean(values, weight)  sum of weight · values over sum of weight, over all ranks,
                                                each of which has to call it
    session.averaged()                          an average was taken
"""

from typing import Any, ClassVar

from pydantic import Field

from shardyard import Strategy


class MyLocalSGD(Strategy):
    """Average the weights every H local steps."""

    transports: ClassVar[tuple[str, ...]] = ("gloo", "mpi", "rpc", "memory")

    local_steps: int = Field(10, ge=1, description="H: steps between two averages")

    def train(self, session: Any) -> None:
        """Train to the end of the run.

        Each rank takes H steps on its own batches, then all take the mean of their weights, in proportion
        to the samples that each has trained on since the last mean. A rank without samples left takes no
        step, but takes part in the mean. After the last step all ranks hold the same weights: if steps
        are left over, average once more. Steps are counted over the ends of epochs.
        """
        # solution: write MyLocalSGD.train
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
        # end of solution
