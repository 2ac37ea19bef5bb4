"""FedNova: averages of changes that are normalised by the local steps they took."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import ALL_TRANSPORTS, Interval, Strategy, Uneven, Weighting

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.training.loader import Batch
    from trainer.training.session import Session


class FedNova(Strategy):
    """Average the changes of nodes per local step, where nodes take unequally many (Wang et al. 2020).

    In a round node i takes τ_i steps from x with the run's optimizer, at most `local_steps`, and fewer if
    its part ends. Its change is divided by a_i, the sum of the weights of its gradients in it:

        d_i = (x − y_i) / a_i        a_i = τ_i with sgd
        a_i = (τ_i − ρ (1 − ρ^τ_i) / (1 − ρ)) / (1 − ρ) with momentum ρ
        x ← x − τ_eff Σ p_i d_i      τ_eff = Σ p_i a_i

    So a node with more steps does not pull the average towards its own minimum. If all τ_i are equal, it is
    `local_sgd`. Rounds as long as the epoch of the largest part are the paper's setting: each node passes
    over its part once, and τ_i is in proportion to it.

    weighting: with size p_i = n_i / Σ n_j for the n_i samples that node i has trained on in the round, with
    equal all nodes that took a step count alike. Momentum starts at 0 in each round, as the formula of a_i
    requires. Buffers become their average. A round that the target accuracy cuts short ends with the
    average that reached it.

    Source: Wang et al. 2020, "Tackling the Objective Inconsistency Problem", Sec. 4; the formula of a_i
    with momentum is that of a sum over τ_i steps.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")
    optimizers: ClassVar[tuple[str, ...]] = ("sgd", "textbook_sgd", "momentum", "textbook_momentum")

    local_steps: int = Field(10, ge=1, description="the most local steps of a round")
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
        n = replica.parameter_count  # the first n weights are parameters, the others buffers
        common = session.common_state(x=replica.weights(), steps=0)
        own = session.own_state(tau=0)
        rho: float = getattr(session.spec.optimizer, "momentum", 0.0)

        def counted_step(batch: Batch) -> None:
            replica.backward(batch)
            replica.step()
            own.tau += 1

        def exchange() -> Tensor:
            with session.clock.phase("compute"):
                sent, a = replica.weights(), gradient_weight(own.tau, rho)
                sent[:n] = (common.x[:n] - sent[:n]) / a if own.tau else 0.0
                sent = torch.cat([sent, sent.new_tensor([a])])
            n_i = session.averaging_weight(self.weighting) if own.tau else 0
            own.tau = 0
            return session.comm.weighted_mean(sent, n_i)

        of_rounds = self.local_steps, self.weighting, self.uneven
        for mean in rounds(session, replica, common, *of_rounds, step=counted_step, exchange=exchange):
            with session.clock.phase("compute"):
                common.x[:n] -= mean[-1] * mean[:n]
                common.x[n:] = mean[n:-1]
                replica.set_weights(common.x)
                if rho:
                    replica.reset_optimizer()


def gradient_weight(tau: int, rho: float) -> float:
    """a_i: the sum of the weights that the gradients of τ steps with momentum ρ have in their change."""
    return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
