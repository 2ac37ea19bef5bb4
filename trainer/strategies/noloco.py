"""NoLoCo: outer steps on random pairs of nodes, without a collective."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from trainer.core.strategy import CPU_TRANSPORTS, Interval, Strategy, Uneven

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.training.session import Session


class NoLoCo(Strategy):
    """Take outer steps with the mean change of a random pair of nodes (Kolehmainen et al. 2025).

    Node i has outer weights φ_i, from which it takes H = `local_steps` steps to θ_i with the run's
    optimizer. Then nodes form random pairs. With the means over its pair, node i takes the outer step

        Δ_i = θ_i − φ_i        δ_i ← α δ_i + β mean₂(Δ) − γ (φ_i − mean₂(φ))        φ_i ← φ_i + δ_i

    The last term draws the outer weights of a pair together, because no exchange is among all nodes. Pairs
    are drawn from the run's seed, so the nodes agree on them. If P is odd, one node takes its outer step
    alone. The mean of all nodes is evaluated, and taken at the end. With two nodes all φ_i are equal, and
    it is `fedopt` with server: momentum, for any γ.

    Without gradients, γ below 2 (1 + α) draws a fixed pair together (ours). Nodes count alike: one without
    samples left has Δ_i = 0. Buffers become the mean of the pair (ours).

    Source: Kolehmainen et al. 2025, "NoLoCo: No-all-reduce Low Communication Training", arXiv 2506.10911.
    We have compared it with the authors' code, `sparse_optimizer_c.py` of jkolehm/noloco, not with the
    paper. The defaults are those of its configurations on C4; γ = β there.
    """

    transports: ClassVar[tuple[str, ...]] = CPU_TRANSPORTS
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    local_steps: int = Field(10, ge=1, description="H: inner steps per outer step")
    alpha: float = Field(0.5, ge=0, lt=1, description="α: momentum of the outer step")
    beta: float = Field(0.7, gt=0, le=10, description="β: learning rate of the outer step")
    gamma: float = Field(
        0.7, gt=0, lt=4, description="γ: how strongly the weights of a pair are drawn together"
    )
    uneven: Uneven = "join"

    @property
    def updates_use_global_batch(self) -> bool:
        return False

    def train(self, session: Session) -> None:
        import torch

        from trainer.parallel.rounds import rounds

        comm, replica = session.comm, session.replica()
        session.start(replica)
        n = replica.parameter_count  # the first n weights are parameters, the others buffers
        common = session.common_state(steps=0, rounds=0)
        own = session.own_state(phi=replica.weights(), delta=replica.weights()[:n] * 0)

        def exchange() -> Tensor:
            theta = replica.weights()
            sent = torch.cat([theta - own.phi, own.phi])
            drawn = session.task.rngs.generator("peers", common.rounds).permutation(session.size).tolist()
            common.rounds += 1
            place = drawn.index(session.rank)
            if (other := place ^ 1) == session.size:
                return sent
            request = comm.irecv(torch.empty_like(sent), drawn[other])
            comm.send(sent, drawn[other])
            received: Tensor = request.wait()
            return (sent + received) / 2

        of_rounds = self.local_steps, None, self.uneven
        for mean in rounds(session, replica, common, *of_rounds, exchange=exchange):
            with session.clock.phase("compute"):
                change, phi = mean.chunk(2)
                together = own.phi[:n] - phi[:n]
                own.delta = self.alpha * own.delta + self.beta * change[:n] - self.gamma * together
                own.phi = torch.cat([own.phi[:n] + own.delta, phi[n:] + change[n:]])
                replica.set_weights(own.phi)
        replica.set_weights(comm.weighted_mean(replica.weights(), 1))
