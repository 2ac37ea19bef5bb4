"""Mistakes in data of tokens: targets off by one, the last window, sequences, and the best loss."""

from __future__ import annotations

from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from trainer.data.base import DataError
from trainer.data.datasets.text import Copy, Induction, PydocText, TinyShakespeare, tokens_of
from trainer.spec.registries import DATASETS


def test_windows_take_all_tokens_with_a_next_one_and_the_last_tenth_is_the_test_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = PydocText().text(Path())
    monkeypatch.setattr(PydocText, "text", lambda *_: text)
    digests = set()
    for level in ("bytes", "characters"):
        dataset = PydocText.model_validate({"window": 50, "level": level})
        data, tokens = dataset.load(Path()), tokens_of(text, dataset.level)
        np.testing.assert_array_equal(data.train.inputs.ravel(), tokens[: 359_999 // 50 * 50])
        np.testing.assert_array_equal(data.train.targets.ravel(), tokens[1 : 359_999 // 50 * 50 + 1])
        np.testing.assert_array_equal(data.test.inputs.ravel(), tokens[360_000:][: 39_999 // 50 * 50])
        assert data.train.inputs.max() < dataset.vocabulary
        digests.add(data.digest)
    assert (data.train.inputs == 0).mean() < 0.01  # most characters are known
    monkeypatch.setattr(PydocText, "text", lambda *_: "a" * 400_001)
    digests.add(PydocText().load(Path()).digest)
    assert len(digests - {None}) == 2  # of the text, whatever a token is


def test_characters_are_those_of_ascii_and_one_for_all_others() -> None:
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
    task = Copy(length=5, tokens=7, samples=300)
    found = whole(task)
    assert found.shape == (300, 10)
    np.testing.assert_array_equal(found[:, :5], found[:, 5:])
    assert {*found.ravel().tolist()} == {*range(7)}
    assert task.best_loss == pytest.approx(4 * log(7) / 9)


def test_the_last_token_of_an_induction_follows_its_first_occurrence() -> None:
    task = Induction(length=5, tokens=8, samples=2000)
    places = set()
    for *first, again, last in whole(task).tolist():
        assert len({*first}) == len(first) == 5
        places.add(first.index(again))
        assert first[first.index(again) + 1] == last
    assert places == {0, 1, 2, 3}
    assert task.best_loss == pytest.approx((log(7) + log(6) + log(5) + log(4) + log(4)) / 6)


def test_a_seed_draws_the_test_split_whatever_the_training_split_is() -> None:
    first, other, fewer = (each.load(Path()) for each in (Copy(), Copy(data_seed=1), Copy(samples=10)))
    assert not np.array_equal(first.train.inputs, other.train.inputs)
    np.testing.assert_array_equal(first.test.inputs, fewer.test.inputs)


def test_no_test_input_of_a_generated_task_is_in_the_training_split() -> None:
    copy = Copy(tokens=3, length=5, samples=242)  # of 243 inputs
    for task in (copy, Induction(tokens=3, length=3, samples=11, test_samples=50)):  # of 12
        data = task.load(Path())
        train, test = ({each.tobytes() for each in split.inputs} for split in (data.train, data.test))
        assert not train & test
        assert len(data.test.inputs) == task.test_samples


def test_samples_that_can_have_all_inputs_are_refused() -> None:
    for name, tokens, length, inputs in (("copy", 3, 5, 243), ("induction", 4, 3, 48)):
        form: dict[str, Any] = {"name": name, "tokens": tokens, "length": length}
        most = DATASETS.parse({**form, "samples": inputs - 1})
        assert isinstance(most, Copy | Induction)
        drawn = most.sequences(20 * inputs, np.random.default_rng(0))
        assert len({each[:-1].tobytes() for each in drawn}) == inputs
        with pytest.raises(ValidationError, match=rf"samples {inputs} .*allowed: 1 to {inputs - 1}"):
            DATASETS.parse({**form, "samples": inputs})
