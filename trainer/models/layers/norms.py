"""Normalisation layers that can follow a convolution."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn

GROUPS = 32
Norm = Literal["batch", "sync_batch", "group"]
NORM = (  # the description of a field
    "normalisation: batch, over a rank's own samples; sync_batch, over the samples of all ranks; "
    "group, over channels of one sample"
)


def independent_units(norm: Norm | Literal["none"], channels: int) -> int:
    """Return how many channels, or groups of channels, are normalised independently of each other."""
    return gcd(GROUPS, channels) if norm == "group" else channels


def build_norm(norm: Norm, channels: int) -> nn.Module:
    """Build a normalisation layer.

    batch: BatchNorm (Ioffe & Szegedy 2015). sync_batch: BatchNorm over all ranks. group: GroupNorm (Wu & He
    2018) with 32 groups as in the paper, or the largest of 32, 16, 8, … that divides the channels.
    GroupNorm uses no other samples, so splitting a batch into micro-batches does not change the result.
    """
    from torch import nn

    from trainer.models.layers.sync_batch_norm import SyncBatchNorm

    match norm:
        case "batch":
            return nn.BatchNorm2d(channels)
        case "sync_batch":
            return SyncBatchNorm(channels)
        case "group":
            return nn.GroupNorm(independent_units(norm, channels), channels)
