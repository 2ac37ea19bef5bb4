"""Mistakes in attacks: the sign, the scale, a majority, the last class, an attack that is none."""

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
KNOWN = Knowledge(
    50, 24, np.random.default_rng(0), torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.1, 0.2, 0.0])
)


def test_what_a_node_sends_and_trains_on() -> None:
    assert SignFlip(scale=3.0).vector(OWN, KNOWN).tolist() == [-3.0, 6.0, -1.5]
    assert OWN.tolist() == [1.0, -2.0, 0.5]
    assert LabelFlip().targets(torch.tensor([0, 3, 9]), 10).tolist() == [9, 6, 0]
    assert LabelFlip().vector(OWN, KNOWN) is OWN
    sent = Noise(std=5.0).vector(torch.full((20_000,), 1e6), KNOWN)
    assert sent.mean().item() == pytest.approx(0, abs=0.2)
    assert sent.std().item() == pytest.approx(5, rel=0.05)


def test_z_is_that_of_the_paper_unless_it_is_given() -> None:
    """Of 50 workers 24 are corrupted, and need 2 supporters: Φ(z) = 24/26; of 51 they also need 2."""
    paper = LittleIsEnough()
    assert paper.deviations(50, 24) == pytest.approx(1.43, abs=0.01)
    assert paper.deviations(51, 24) == pytest.approx(1.45, abs=0.01)
    sent = paper.vector(OWN, KNOWN)
    torch.testing.assert_close(sent, torch.tensor([1 - 0.143, 2 - 0.286, 3.0]), rtol=0, atol=1e-3)
    assert LittleIsEnough(z=1.5).vector(OWN, KNOWN).tolist() == pytest.approx([0.85, 1.7, 3.0])
    assert (paper.counts_vectors, LittleIsEnough(z=1.5).counts_vectors) == (True, False)
    assert paper.validation_error(10, 3) is None


@pytest.mark.parametrize(("vectors", "byzantine"), [(2, 1), (8, 1), (8, 2), (5, 3)])
def test_a_z_that_is_no_attack_is_an_error(vectors: int, byzantine: int) -> None:
    assert "allowed" in (LittleIsEnough().validation_error(vectors, byzantine) or "")
    assert LittleIsEnough(z=1.5).validation_error(vectors, byzantine) is None
