"""Tokens: windows of a text and their targets, and generated sequences with a known best loss."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from trainer.data.base import DataError
from trainer.data.datasets.text import ALPHABET, Copy, Induction, PydocText, TinyShakespeare, tokens_of
from trainer.spec.registries import DATASETS


@pytest.mark.parametrize("level", ["bytes", "characters"])
def test_windows_follow_each_other_and_targets_are_the_next_tokens(level: str, tmp_path: Path) -> None:
    dataset = PydocText.model_validate({"window": 50, "level": level})
    data = dataset.load(tmp_path)
    tokens = tokens_of(dataset.text(tmp_path), dataset.level)[: dataset.size]
    train, test = 360_000, 40_000
    assert data.train.inputs.shape == ((train - 1) // 50, 50) == (dataset.train_samples, *dataset.shape)
    assert data.test.inputs.shape == ((test - 1) // 50, 50)
    np.testing.assert_array_equal(data.train.inputs.ravel(), tokens[: data.train.inputs.size])
    np.testing.assert_array_equal(data.train.targets.ravel(), tokens[1 : data.train.targets.size + 1])
    np.testing.assert_array_equal(data.test.targets.ravel()[:3], tokens[train + 1 : train + 4])
    assert data.train.inputs.max() < dataset.vocabulary
    assert data.train.inputs.dtype == dataset.input_type
    assert not data.train.labels.any()


def test_the_digest_is_that_of_the_text_whatever_a_token_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (PydocText(level=level).load(tmp_path).digest for level in ("bytes", "characters"))
    assert one == other
    monkeypatch.setattr(PydocText, "text", lambda *_: "a" * 400_001)
    assert PydocText().load(tmp_path).digest not in (None, one)


def test_characters_are_those_of_ascii_and_one_for_all_others() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 96
    np.testing.assert_array_equal(tokens_of("\n ~é…", "characters"), [1, 2, 96, 0, 0])
    np.testing.assert_array_equal(tokens_of("aé", "bytes"), [97, 195, 169])


def test_most_characters_of_the_text_are_known(tmp_path: Path) -> None:
    tokens = PydocText().load(tmp_path).train.inputs
    assert (tokens == 0).mean() < 0.01


def test_a_copy_repeats_its_first_half() -> None:
    data = Copy(length=5, tokens=7, samples=300, test_samples=20).load(Path())
    whole = np.concatenate([data.train.inputs, data.train.targets[:, -1:]], axis=1)
    assert whole.shape == (300, 10)
    np.testing.assert_array_equal(whole[:, :5], whole[:, 5:])
    assert set(np.unique(whole)) == {*range(7)}
    assert Copy(length=5, tokens=7).best_loss == pytest.approx(4 * log(7) / 9)


def test_the_last_token_of_an_induction_follows_its_first_occurrence() -> None:
    dataset = Induction(length=5, tokens=8, samples=2000, test_samples=20)
    data = dataset.load(Path())
    whole = np.concatenate([data.train.inputs, data.train.targets[:, -1:]], axis=1)
    assert whole.shape == (2000, 7)
    for sequence in whole[:200]:
        first, again, last = [*sequence[:5]], sequence[5], sequence[6]
        assert len(set(first)) == 5
        assert first[first.index(again) + 1] == last
    assert {[*sequence[:5]].index(sequence[5]) for sequence in whole} == {0, 1, 2, 3}
    assert len({tuple(sequence) for sequence in whole}) > 1000
    best = (log(7) + log(6) + log(5) + log(4) + log(4)) / 6
    assert dataset.best_loss == pytest.approx(best)


def test_sequences_depend_on_their_own_seed() -> None:
    one, same, other = (Copy(data_seed=seed).load(Path()).train.inputs for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    fewer = Copy(samples=10).load(Path())
    np.testing.assert_array_equal(fewer.test.inputs, Copy().load(Path()).test.inputs)


def test_another_file_than_the_published_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / TinyShakespeare().files[0]
    file.parent.mkdir()
    file.write_text("First Citizen:\n" * 1000)
    with pytest.raises(DataError, match="md5"):
        TinyShakespeare().load(tmp_path)


SMALL_TASKS = [
    Copy(tokens=4, length=6, samples=2048),
    Copy(tokens=3, length=5, samples=242),  # of 243
    Induction(tokens=6, length=5, samples=2048),
    Induction(tokens=3, length=3, samples=11, test_samples=50),  # of 12
    Copy(),
]


@pytest.mark.parametrize("task", SMALL_TASKS, ids=str)
def test_no_test_input_of_a_generated_task_is_in_the_training_split(task: Copy | Induction) -> None:
    data = task.load(Path())
    train, test = ({each.tobytes() for each in split.inputs} for split in (data.train, data.test))
    assert not train & test
    assert len(data.test.inputs) == task.test_samples
    # The training split is the first draw, as if there were no test split.
    first = task.sequences(task.samples, np.random.default_rng(task.data_seed).spawn(2)[0])
    np.testing.assert_array_equal(data.train.inputs, first[:, :-1])


@pytest.mark.parametrize(
    ("dataset", "inputs"),
    [
        ({"name": "copy", "tokens": 3, "length": 5}, 243),
        ({"name": "induction", "tokens": 4, "length": 3}, 48),
    ],
)
def test_samples_that_can_have_all_inputs_are_refused(dataset: dict[str, Any], inputs: int) -> None:
    assert DATASETS.parse({**dataset, "samples": inputs - 1}).different_inputs == inputs
    with pytest.raises(ValidationError, match=rf"samples {inputs} .*allowed: 1 to {inputs - 1}"):
        DATASETS.parse({**dataset, "samples": inputs})
    drawn = DATASETS.parse({**dataset, "samples": inputs - 1}).sequences(
        20 * inputs, np.random.default_rng(0)
    )
    assert len({each[:-1].tobytes() for each in drawn}) == inputs
