"""Mistakes of registered augmentations: each keeps the laws on images that are not square."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainer.conformance.augmentation import Batch, laws
from trainer.conformance.law import examine_all
from trainer.spec.registries import AUGMENTATIONS
from trainer.user_components.random_state import global_states

SHAPE = (3, 20, 24)


@pytest.mark.parametrize("name", AUGMENTATIONS.entries)
def test_an_augmentation_keeps_all_laws_and_the_state_of_global_generators(name: str) -> None:
    augmentation = AUGMENTATIONS.parse(name)
    found = examine_all(laws(augmentation, SHAPE), Path())
    assert [each for each in found if each.status == "failed"] == []
    batch, before = Batch(SHAPE, 20), global_states()
    if augment := augmentation.build(batch.scale, "cpu"):
        augment(batch.inputs, np.random.default_rng(0))
    assert global_states() == before
