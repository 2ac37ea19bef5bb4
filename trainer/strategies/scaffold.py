"""SCAFFOLD: local steps whose drift control variates correct."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import ALL_TRANSPORTS, Interval, Strategy, Uneven, Weighting

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.training.loader import Batch
    from trainer.training.session import Session


class Scaffold(Strategy):
    """Correct the drift of local steps with control variates (Karimireddy et al. 2020).

    In Alg. 1 all nodes hold x and c, and node i holds c_i; c and c_i start at 0. In a round node i takes
    K = `local_steps` steps from y_i = x, and computes its new variate by option II:

        y_i ← y_i − η (g_i(y_i) − c_i + c)
        Δc_i = (x − y_i) / Σ η − c        c_i ← c_i + Δc_i

    where Σ η = K η with a constant learning rate. Then all nodes take

        x ← x + η_g (mean of y_i − x)     c ← c + mean of Δc_i

    Both means travel in one exchange of twice the weights. In the first round the variates are 0, so it is
    one of `local_sgd` if η_g = 1. Every node takes part in each round, so |S| = N.

    weighting: the paper's means are equal. With size node i counts with the samples that it has trained on
    in the round (ours). A node that takes no step in a round has Δc_i = 0. Buffers become their average. A
    round that the target accuracy cuts short ends with the average that reached it.

    Source: Karimireddy et al. 2020, "SCAFFOLD: Stochastic Controlled Averaging", Alg. 1.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")
    optimizers: ClassVar[tuple[str, ...]] = ("sgd", "textbook_sgd")

    local_steps: int = Field(10, ge=1, description="K: local steps of a round")
    global_lr: float = Field(1.0, gt=0, le=10, description="η_g: learning rate of the step between rounds")
    weighting: Weighting = "size"
    uneven: Uneven = "join"

    @property
    def updates_use_global_batch(self) -> bool:
        return self.local_steps == 1

    def train(self, session: Session) -> None:
        import torch

        from trainer.parallel.rounds import rounds

        replica = session.replica()
        session.start(replica)
        x, n = replica.weights(), replica.parameter_count
        common = session.common_state(x=x, c=x.new_zeros(n), steps=0)
        own = session.own_state(c_i=x.new_zeros(n), sum_of_lr=0.0)

        def corrected_step(batch: Batch) -> None:
            replica.backward(batch)
            with session.clock.phase("compute"):
                replica.set_gradient(replica.gradient() - own.c_i + common.c)
            replica.step()
            own.sum_of_lr += replica.lr

        def exchange() -> Tensor:
            with session.clock.phase("compute"):
                y_i = replica.weights()
                change = torch.zeros_like(own.c_i)
                if own.sum_of_lr:
                    change = (common.x[:n] - y_i[:n]) / own.sum_of_lr - common.c
                own.c_i, own.sum_of_lr = own.c_i + change, 0.0
                sent = torch.cat([y_i, change])
            return session.comm.weighted_mean(sent, session.averaging_weight(self.weighting))

        of_rounds = self.local_steps, self.weighting, self.uneven
        for mean in rounds(session, replica, common, *of_rounds, step=corrected_step, exchange=exchange):
            with session.clock.phase("compute"):
                y, change = mean[: len(x)], mean[len(x) :]
                common.x[:n] += self.global_lr * (y[:n] - common.x[:n])
                common.x[n:] = y[n:]
                common.c += change
                replica.set_weights(common.x)
