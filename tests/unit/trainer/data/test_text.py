"""Mistakes in data of tokens: targets off by one, the last window, sequences, and the best loss."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from trainer.data.base import DataError
from trainer.data.datasets.text import (
    ALPHABET,
    Copy,
    Induction,
    PydocText,
    TinyShakespeare,
    tokens_of,
    windows,
)
from trainer.spec.registries import DATASETS


@pytest.mark.parametrize(("tokens", "count"), [(11, 2), (15, 2), (16, 3)])
def test_windows_take_all_tokens_that_have_a_next_one(tokens: int, count: int) -> None:
    split = windows(np.arange(tokens), 5)
    np.testing.assert_array_equal(split.inputs, np.arange(5 * count).reshape(count, 5))
    np.testing.assert_array_equal(split.targets, split.inputs + 1)
    assert split.labels.tolist() == [0] * count
    assert split.nbytes == 8 * (5 * count + 5 * count + count)


@pytest.mark.parametrize("level", ["bytes", "characters"])
def test_the_last_tenth_of_a_text_is_the_test_split(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PydocText().text(Path())
    monkeypatch.setattr(PydocText, "text", lambda *_: text)
    dataset = PydocText.model_validate({"window": 50, "level": level})
    data, tokens = dataset.load(Path()), tokens_of(text, dataset.level)[: dataset.size]
    assert data.train.inputs.shape == (359_999 // 50, 50) == (dataset.train_samples, *dataset.shape)
    np.testing.assert_array_equal(data.train.inputs.ravel(), tokens[: data.train.inputs.size])
    np.testing.assert_array_equal(data.test.inputs[0], tokens[360_000:360_050])
    assert data.test.inputs.shape == (39_999 // 50, 50)
    assert data.train.inputs.max() < dataset.vocabulary
    assert (data.train.inputs == 0).mean() < 0.01  # most characters are known
    assert data.digest == PydocText().load(Path()).digest  # of the text, whatever a token is
    monkeypatch.setattr(PydocText, "text", lambda *_: "a" * 400_001)
    assert PydocText().load(Path()).digest not in (None, data.digest)


def test_characters_are_those_of_ascii_and_one_for_all_others() -> None:
    assert len(ALPHABET) == len(set(ALPHABET)) == 96
    assert tokens_of("\n ~é…", "characters").tolist() == [1, 2, 96, 0, 0]
    assert tokens_of("aé", "bytes").tolist() == [97, 195, 169]


def test_a_file_that_is_not_the_published_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / TinyShakespeare().files[0]
    file.parent.mkdir()
    file.write_text("First Citizen:\n" * 1000)
    with pytest.raises(DataError, match="md5"):
        TinyShakespeare().load(tmp_path)


# Generated sequences


def whole(task: Copy | Induction) -> np.ndarray:
    """The training sequences with their last tokens."""
    split = task.load(Path()).train
    np.testing.assert_array_equal(split.inputs[:, 1:], split.targets[:, :-1])
    return np.concatenate([split.inputs, split.targets[:, -1:]], axis=1)


def test_a_copy_repeats_its_first_half() -> None:
    task = Copy(length=5, tokens=7, samples=300, test_samples=20)
    found = whole(task)
    assert found.shape == (300, 10) == (task.train_samples, task.shape[0] + 1)
    np.testing.assert_array_equal(found[:, :5], found[:, 5:])
    assert {*found.ravel().tolist()} == {*range(7)}
    assert task.best_loss == pytest.approx(4 * log(7) / 9)


def test_the_last_token_of_an_induction_follows_its_first_occurrence() -> None:
    task = Induction(length=5, tokens=8, samples=2000, test_samples=20)
    found = whole(task)
    assert found.shape == (2000, 7) == (task.train_samples, task.shape[0] + 1)
    places = set()
    for *first, again, last in found.tolist():
        assert len({*first}) == 5
        places.add(first.index(again))
        assert first[first.index(again) + 1] == last
    assert places == {0, 1, 2, 3}
    assert task.best_loss == pytest.approx((log(7) + log(6) + log(5) + log(4) + log(4)) / 6)


def test_sequences_depend_on_their_own_seed() -> None:
    one, same, other = (Copy(data_seed=seed).load(Path()).train.inputs for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(
        Copy(samples=10).load(Path()).test.inputs, Copy().load(Path()).test.inputs
    )


@pytest.mark.parametrize(
    "task",
    [
        Copy(tokens=4, length=6, samples=2048),
        Copy(tokens=3, length=5, samples=242),  # of 243
        Induction(tokens=3, length=3, samples=11, test_samples=50),  # of 12
    ],
    ids=str,
)
def test_no_test_input_of_a_generated_task_is_in_the_training_split(task: Copy | Induction) -> None:
    data = task.load(Path())
    train, test = ({each.tobytes() for each in split.inputs} for split in (data.train, data.test))
    assert not train & test
    assert len(data.test.inputs) == task.test_samples


@pytest.mark.parametrize(
    ("dataset", "inputs"),
    [
        ({"name": "copy", "tokens": 3, "length": 5}, 243),
        ({"name": "induction", "tokens": 4, "length": 3}, 48),
    ],
    ids=str,
)
def test_samples_that_can_have_all_inputs_are_refused(dataset: dict[str, Any], inputs: int) -> None:
    most = DATASETS.parse({**dataset, "samples": inputs - 1})
    assert isinstance(most, Copy | Induction)
    drawn = most.sequences(20 * inputs, np.random.default_rng(0))
    assert len({each[:-1].tobytes() for each in drawn}) == most.different_inputs == inputs
    with pytest.raises(ValidationError, match=rf"samples {inputs} .*allowed: 1 to {inputs - 1}"):
        DATASETS.parse({**dataset, "samples": inputs})
