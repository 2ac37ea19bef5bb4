"""Muon, by torch: orthogonalised momentum for matrices, AdamW for other weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from trainer.optimizers.decay import DecayingOptimizer

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer as TorchOptimizer

    from trainer.models.base import Model


class Muon(DecayingOptimizer):
    """Muon by torch for hidden matrices, AdamW for all other weights (Jordan et al. 2024).

        u ← μ u + (1 − μ) g,  n = μ u + (1 − μ) g
        θ ← θ − η (0.2 √max(a, b) orthogonalise(n) + λ θ)

    for a matrix of a rows and b columns. Five Newton-Schulz iterations in bfloat16 bring all singular
    values of n close to 1. The factor makes a step about as long as one of AdamW, so that both can use one
    learning rate (Liu et al. 2025, "Muon is Scalable for LLM Training", Sec. 2.2); AdamW's is `rate` η.

    Hidden matrices are the weights of two dimensions that are not in an embedding, in the first layer or in
    the last one. Convolutions have four dimensions.

    Source: Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks".
    """

    state_names: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")  # of AdamW; Muon keeps one
    layerwise: ClassVar[bool] = True
    groups_by_place: ClassVar[bool] = True

    momentum: float = Field(0.95, gt=0, lt=1, description="μ: decay rate of the momentum")
    nesterov: bool = Field(True, description="Nesterov's momentum; else n = u")
    rate: float = Field(1.0, gt=0, le=100, description="learning rate of AdamW as a multiple of Muon's")
    beta1: float = Field(0.9, ge=0, lt=1, description="AdamW: decay rate of the mean gradient")
    beta2: float = Field(0.999, ge=0, lt=1, description="AdamW: decay rate of the mean squared gradient")
    weight_decay: float = Field(
        0.1, ge=0, le=1, description="λ: share of the weights, times lr, removed per step, also by AdamW"
    )

    def validation_error(self, model: Model) -> str | None:
        if model.hidden_matrices:
            return None
        return "steps along orthogonalised matrices, and {model} has none between its first and last layer"

    def build(self, parameters: Iterable[Tensor], lr: float) -> TorchOptimizer:
        tensors = [*parameters]
        return self._over([each for each in tensors if each.dim() == 2], tensors, lr)

    def of_model(self, model: nn.Module, lr: float) -> TorchOptimizer:
        return self._over(hidden_matrices(model), [*model.parameters()], lr)

    def _over(self, matrices: list[Tensor], parameters: list[Tensor], lr: float) -> TorchOptimizer:
        from torch.optim import AdamW
        from torch.optim import Muon as TorchMuon
        from torch.optim import Optimizer as TorchOptimizer

        from trainer.optimizers.torch_wrapper import SeveralOptimizers

        by_muon, optimizers = {*map(id, matrices)}, list[TorchOptimizer]()
        if matrices:
            steps = dict[str, Any](momentum=self.momentum, nesterov=self.nesterov)
            muon = TorchMuon(matrices, lr, self.weight_decay, adjust_lr_fn="match_rms_adamw", **steps)
            optimizers.append(muon)
        if others := self.groups(each for each in parameters if id(each) not in by_muon):
            optimizers.append(AdamW(others, lr=lr * self.rate, betas=(self.beta1, self.beta2)))
        return SeveralOptimizers(optimizers)


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """The weights of two dimensions that are in no embedding, nor in the first or the last layer.

    A layer is the module that has a parameter. The last layer is the last that has a matrix.
    """
    from torch import nn

    named = [*model.named_parameters(remove_duplicate=False)]
    matrices = [(name.rpartition(".")[0], each) for name, each in named if each.dim() == 2]
    if not matrices:
        return []
    embeddings = {name for name, each in model.named_modules() if isinstance(each, nn.Embedding)}
    outer = {named[0][0].rpartition(".")[0], matrices[-1][0], *embeddings}
    left_out = {id(each) for layer, each in matrices if layer in outer}
    found = {id(each): each for _, each in matrices if id(each) not in left_out}
    return [*found.values()]
