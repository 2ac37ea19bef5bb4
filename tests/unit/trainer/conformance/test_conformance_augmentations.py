"""Conformance of augmentations: every registered one keeps the laws on images that are not square, too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainer.conformance.augmentation import Batch, laws
from trainer.conformance.law import examine_all
from trainer.data.augmentations.base import Augmentation
from trainer.spec.registries import AUGMENTATIONS
from trainer.user_components.random_state import global_states

SHAPE = (3, 20, 24)


@pytest.fixture(params=list(AUGMENTATIONS.entries))
def augmentation(request: pytest.FixtureRequest) -> Augmentation:
    return AUGMENTATIONS.parse(request.param)


def test_an_augmentation_keeps_all_laws(augmentation: Augmentation) -> None:
    found = examine_all(laws(augmentation, SHAPE), Path())
    assert [each for each in found if each.status == "failed"] == []


def test_the_state_of_global_generators_stays(augmentation: Augmentation) -> None:
    batch, before = Batch(SHAPE, 20), global_states()
    if augment := augmentation.build(batch.scale, "cpu"):
        augment(batch.inputs, np.random.default_rng(0))
    assert global_states() == before
