"""Attacks: what Byzantine ranks send and train on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trainer.attacks.base import Knowledge
from trainer.attacks.label_flip import LabelFlip
from trainer.attacks.little_is_enough import LittleIsEnough
from trainer.attacks.noise import Noise
from trainer.attacks.sign_flip import SignFlip

OWN = torch.tensor([1.0, -2.0, 0.5])


def knowledge(vectors: int = 50, byzantine: int = 24) -> Knowledge:
    mean, std = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.1, 0.2, 0.0])
    return Knowledge(vectors, byzantine, np.random.default_rng(0), mean, std)


def test_a_flipped_sign() -> None:
    assert SignFlip(scale=3.0).vector(OWN, knowledge()).tolist() == [-3.0, 6.0, -1.5]


def test_noise_has_its_standard_deviation_and_nothing_of_the_own_vector() -> None:
    sent = Noise(std=5.0).vector(torch.full((20_000,), 1e6), knowledge())
    assert sent.mean().item() == pytest.approx(0, abs=0.2)
    assert sent.std().item() == pytest.approx(5, rel=0.05)


def test_labels_are_mirrored() -> None:
    assert LabelFlip().targets(torch.tensor([0, 3, 9]), 10).tolist() == [9, 6, 0]


def test_z_of_the_paper() -> None:
    """Of 50 workers 24 are corrupted, and need 2 supporters: Φ(z) = 24/26."""
    attack = LittleIsEnough()
    assert attack.deviations(50, 24) == pytest.approx(1.43, abs=0.01)
    sent = attack.vector(OWN, knowledge())
    torch.testing.assert_close(sent, torch.tensor([1 - 0.143, 2 - 0.286, 3.0]), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("vectors", "byzantine"), [(2, 1), (8, 1), (8, 2), (5, 3)])
def test_a_z_that_is_no_attack_is_an_error(vectors: int, byzantine: int) -> None:
    assert "allowed" in (LittleIsEnough().validation_error(vectors, byzantine) or "")
    assert LittleIsEnough(z=1.5).validation_error(vectors, byzantine) is None


def test_a_z_of_the_paper_that_is_an_attack_is_allowed() -> None:
    assert LittleIsEnough().validation_error(10, 3) is None
