"""What may stand after a convolution to keep activations in bounds."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn

GROUPS = 32
Norm = Literal["batch", "sync_batch", "group"]
NORM = (  # the description of a field
    "normalisation: batch, over a rank's own samples; sync_batch, over those of all ranks in the step; "
    "group, over a sample's own channels"
)


def shares(kind: Norm | Literal["none"], channels: int) -> int:
    """Into how many shares so many channels can go, each normalised without the others."""
    return gcd(GROUPS, channels) if kind == "group" else channels


def build_norm(kind: Norm, channels: int) -> nn.Module:
    """The normalisation of so many channels.

    batch: Ioffe & Szegedy 2015. group: Wu & He 2018, with 32 groups as there, or the most of 32, 16, 8, …
    that divide the channels. It knows no other samples: a batch may be cut up without changing what is
    computed.
    """
    from torch import nn

    from trainer.models.layers.sync_batch_norm import SyncBatchNorm

    match kind:
        case "batch":
            return nn.BatchNorm2d(channels)
        case "sync_batch":
            return SyncBatchNorm(channels)
        case "group":
            return nn.GroupNorm(shares(kind, channels), channels)
