"""FedOpt: local steps on the nodes, and a step of a server's optimizer along their mean change."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from trainer.core.participation import Participants, Rounds
from trainer.core.strategy import ALL_TRANSPORTS, Interval, Strategy, Uneven, Weighting
from trainer.spec.parameters import AggregationRule

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.training.session import Session

Server = Literal["momentum", "adagrad", "yogi", "adam"]
DEFAULT_LR = {"momentum": 1.0, "adagrad": 0.01, "yogi": 0.01, "adam": 0.01}


class FedOpt(Strategy):
    """Step along the mean change of H local steps with a server's optimizer (Reddi et al. 2021).

    In Alg. 2 each node takes H = `local_steps` steps from x with the run's optimizer. Then the server takes
    one step along Δ, the mean over nodes of x_i − x:

        m ← β₁ m + (1 − β₁) Δ
        v ← v + Δ²                              adagrad (FedAdagrad)
        v ← v − (1 − β₂) Δ² sign(v − Δ²)        yogi (FedYogi)
        v ← β₂ v + (1 − β₂) Δ²                  adam (FedAdam)
        x ← x + η m / (√v + τ)

    v starts at τ². momentum (FedAvgM) is Alg. 1 with SGD with momentum as the server's optimizer (Hsu et
    al. 2019): m ← β₁ m + Δ and x ← x + η m. With β₁ = 0 and η = 1 that is `local_sgd`. Every node computes
    the same server step, so none is the server. SlowMo (Wang et al. 2020) with local SGD, and BMUF
    (Chen and Huo 2016) with classical momentum, are momentum with η as their slow learning rate; BMUF with
    Nesterov momentum is `diloco`.

    weighting: with size, Δ = Σ n_i (x_i − x) / Σ n_i for the n_i samples that node i has trained on in the
    round. With equal, n_i = 1. Alg. 2 leaves the choice open (Sec. 3). aggregation: what takes the place
    of the mean, against Byzantine nodes.

    The server's step moves parameters; buffers (BatchNorm statistics) become their average. A round that
    the target accuracy cuts short ends with the average that reached it.

    Source: Reddi et al. 2021, "Adaptive Federated Optimization", Alg. 2.
    """

    transports: ClassVar[tuple[str, ...]] = ALL_TRANSPORTS
    elastic_transports: ClassVar[tuple[str, ...]] = ("gloo",)
    checkpoint_intervals: ClassVar[tuple[Interval, ...]] = ("epochs", "steps")

    local_steps: int = Field(10, ge=1, description="H: local steps per step of the server")
    server: Server = Field("adam", description="the server's optimizer")
    server_lr: float | None = Field(
        None,
        gt=0,
        le=100,
        description="η: learning rate of the server; default 1 with momentum, else 0.01, "
        "which moves a weight by about 0.01 in a round",
    )
    beta1: float = Field(0.9, ge=0, lt=1, description="β₁: momentum of the server")
    beta2: float = Field(0.99, ge=0, lt=1, description="β₂ of yogi and adam")
    tau: float = Field(0.001, gt=0, le=10, description="τ: adaptivity; a large one approaches momentum")
    participation: Participants = None
    weighting: Weighting = "size"
    aggregation: AggregationRule = Field("mean", validate_default=True)
    uneven: Uneven = "join"

    @property
    def without_effect(self) -> dict[str, str]:
        beside = {"momentum": ("beta2", "tau"), "adagrad": ("beta2",)}.get(self.server, ())
        return dict.fromkeys(beside, f"server: {self.server}")

    @property
    def rounds(self) -> Rounds | None:
        return Rounds.of(self.participation, self.local_steps)

    @property
    def updates_use_global_batch(self) -> bool:
        return self.local_steps == 1

    def train(self, session: Session) -> None:
        from trainer.parallel.rounds import rounds

        replica = session.replica()
        session.start(replica)
        n = replica.parameter_count  # the first n weights are parameters, the others buffers
        x = replica.weights()
        m, v = x.new_zeros(n), x.new_full((n,), self.tau**2)
        round_ = session.common_state(x=x, m=m, v=v, steps=0)
        chosen = self.local_steps, self.weighting, self.uneven, self.aggregation
        for mean in rounds(session, replica, round_, *chosen):
            with session.clock.phase("compute"):
                self.server_step(round_.x[:n], mean[:n], round_.m, round_.v)
                round_.x[n:] = mean[n:]
                replica.set_weights(round_.x)

    def server_step(self, x: Tensor, mean: Tensor, m: Tensor, v: Tensor) -> None:
        """One step on `x`, in place; m and v are the server's state. All of shape (parameters,)."""
        eta = self.server_lr if self.server_lr is not None else DEFAULT_LR[self.server]
        change = mean - x
        if self.server == "momentum":
            m.mul_(self.beta1).add_(change)
            x.add_(m, alpha=eta)
            return
        m.mul_(self.beta1).add_(change, alpha=1 - self.beta1)
        square = change.square()
        match self.server:
            case "adagrad":
                v.add_(square)
            case "yogi":
                v.sub_(square * (v - square).sign(), alpha=1 - self.beta2)
            case "adam":
                v.mul_(self.beta2).add_(square, alpha=1 - self.beta2)
        x.addcdiv_(m, v.sqrt().add_(self.tau), value=eta)
