"""A residual block, one block of a chain: its two ways lie side by side, so it is not cut inside."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from trainer.models.layers.norms import Norm, build_norm


class Residual(nn.Module):
    """Norm, ReLU, conv 3×3, norm, ReLU, conv 3×3; what came in is added.

    Pre-activation after He et al. 2016 ("Identity Mappings in Deep Residual Networks", Fig. 4e). Where
    channels or pixels change, a convolution 1×1 of the first activation stands in for what came in.
    """

    def __init__(self, channels: int, wide: int, stride: int, norm: Norm) -> None:
        """channels, wide: that come in and go out. stride: of the first convolution."""
        super().__init__()
        self.norm1 = build_norm(norm, channels)
        self.conv1 = nn.Conv2d(channels, wide, kernel_size=3, stride=stride, padding=1, bias=False)
        self.norm2 = build_norm(norm, wide)
        self.conv2 = nn.Conv2d(wide, wide, kernel_size=3, padding=1, bias=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or wide != channels:
            self.shortcut = nn.Conv2d(channels, wide, kernel_size=1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = relu(self.norm1(x))
        past = x if isinstance(self.shortcut, nn.Identity) else self.shortcut(active)
        y: Tensor = past + self.conv2(relu(self.norm2(self.conv1(active))))
        return y
