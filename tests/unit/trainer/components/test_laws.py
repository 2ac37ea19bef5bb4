"""Mistakes in registered components: each keeps all laws of its kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.laws import findings
from trainer.components.find import kinds
from trainer.components.kind import On
from trainer.data.datasets.synthetic import Synthetic
from trainer.data.datasets.text import Copy
from trainer.spec.registries import DATASETS, REGISTRIES

LAYERS = {"layers": 1}
SMALLER = {"wide_resnet": {"widen": 1}, "vgg_small": {"width": 4}, "gpt": LAYERS, "vit_small": LAYERS}
# The laws that say nothing about some components of a kind, and those that may give a note.
SKIPPED = {"optimizer": {"curve", "layers"}, "augmentation": {"argument", "shape", "seeded", "finite"}}
SKIPPED |= {"loss": set(), "dataset": set(), "model": {"samples", "pairs", "classes"}}
SKIPPED |= {"lr_schedule": set()}
NOTES = {"augmentation": {"changes"}, "dataset": {"apart"}}
NAMES = [(kind, name) for kind in SKIPPED for name in REGISTRIES[kind].entries]
NAMES = [each for each in NAMES if each[0] != "dataset" or not DATASETS.parse(each[1]).files]


@pytest.mark.parametrize(
    ("kind", "name"),
    [pytest.param(*each, marks=[pytest.mark.slow] * (each[0] == "model")) for each in NAMES],
)
def test_a_registered_component_keeps_all_laws(kind: str, name: str) -> None:
    """On images that are not square, or on those or the tokens that a model takes."""
    own: Any = REGISTRIES[kind].parse({"name": name, **SMALLER.get(name, {})})
    dataset: Any = Synthetic(channels=3, height=8, width=12)
    if kind == "model" and own.validation_error(dataset.shape):
        dataset = Copy(length=4) if own.takes_tokens else Synthetic(channels=3, height=28, width=28)
    before = torch.get_rng_state()
    found = findings(kinds()[kind](own, On(dataset=dataset)))
    assert [each for each in found.values() if each.status == "failed"] == []
    for status, laws in (("skipped", SKIPPED), ("note", NOTES)):
        told = {law for law, each in found.items() if each.status == status}
        assert told <= laws.get(kind, set()) | ({"order"} if name == "muon" else set())  # it has groups
        assert all(found[law].reason for law in told)
    if kind == "model":
        assert torch.equal(torch.get_rng_state(), before)
        assert found["splits"].inputs == len(own.names) - 1
        assert all(each.isidentifier() for each in own.names)
