"""Residual block: one block of the chain, since a split point cannot lie between its two branches."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from trainer.models.layers.norms import Norm, build_norm


class ResidualBlock(nn.Module):
    """y = shortcut(x) + conv2(relu(norm2(conv1(relu(norm1(x)))))), with 3×3 convolutions.

    Full pre-activation of He et al. 2016 ("Identity Mappings in Deep Residual Networks", Fig. 4e). The
    shortcut is the identity, or a 1×1 convolution of relu(norm1(x)) where channels or image size change.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int, norm: Norm) -> None:
        """stride: the stride of the first convolution."""
        super().__init__()
        self.norm1 = build_norm(norm, in_channels)
        self.conv1 = nn.Conv2d(
            in_channels, out_channels, kernel_size=3, stride=stride, padding=1, bias=False
        )
        self.norm2 = build_norm(norm, out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, kernel_size=3, padding=1, bias=False)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or out_channels != in_channels:
            self.shortcut = nn.Conv2d(in_channels, out_channels, kernel_size=1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        activation = relu(self.norm1(x))
        shortcut = x if isinstance(self.shortcut, nn.Identity) else self.shortcut(activation)
        y: Tensor = shortcut + self.conv2(relu(self.norm2(self.conv1(activation))))
        return y
