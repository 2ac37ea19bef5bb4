"""Mistakes in the laws of augmentations, and in what is refused of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.support.laws import assert_faults, declaring, failing
from trainer.components.augmentation import AugmentationKind
from trainer.components.kind import NOWHERE, Few, On
from trainer.data.augmentations.base import Augmentation
from trainer.data.datasets.synthetic import Synthetic


def augmenting(augment: Callable[..., Any], channels: int = 1) -> AugmentationKind:
    own = declaring(Augmentation, build=lambda self, scale, device: augment)()
    return AugmentationKind(own, On(dataset=Synthetic(channels=channels, height=4, width=4)))


def noisy(inputs: Tensor, rng: Any) -> Tensor:
    return inputs + float(rng.random())


FAULTS: dict[str, AugmentationKind] = {
    "runs: 1 input of shape 1×4×4.*ndarray": augmenting(lambda inputs, rng: inputs.numpy()),
    "shape: 1 input.*float64": augmenting(lambda inputs, rng: noisy(inputs, rng).double()),
    "shape: 3×4×4.*another": augmenting(lambda inputs, rng: noisy(inputs, rng).contiguous(), 3),
    "argument: 1 input.*16 of 16": augmenting(lambda inputs, rng: inputs.add_(float(rng.random()))),
    "seeded: 1 input.*global random state": augmenting(lambda inputs, rng: inputs + torch.rand(1)),
    "changes: 64 inputs.*the same": augmenting(lambda inputs, rng: inputs.clone()),
    "finite: 1 input.*infinite": augmenting(lambda inputs, rng: noisy(inputs, rng) / 0),
}


def test_every_law_has_faults_that_break_it_alone() -> None:
    assert_faults(FAULTS)


def test_augmentations_that_change_what_they_must_not_are_refused() -> None:
    on = On(few=Few(torch.ones(17, 4), torch.zeros(17), np.zeros(17, np.int64)), loading=True)
    cases: dict[str, Any] = {
        "other inputs when global random state differs | rng": lambda inputs, rng: inputs + torch.rand(1),
        "new inputs": lambda inputs, rng: inputs.add_(1),
        "(17, 2) | (17, 4)": lambda inputs, rng: inputs[:, :2],
    }
    kind = AugmentationKind
    assert failing(cases, lambda of: kind(kind.adapt(of, {}, NOWHERE), on).load()) == {}
