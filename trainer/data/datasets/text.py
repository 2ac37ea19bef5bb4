"""Text: windows of tokens, whose targets are the tokens that follow."""

from __future__ import annotations

from abc import abstractmethod
from hashlib import sha256
from math import log, perm
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from trainer.data.base import Data, Dataset, Split
from trainer.data.datasets.files import Archive

Tokens = npt.NDArray[np.int64]
OTHER = 0  # the token of a character that is not in ALPHABET
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # what ASCII prints


class TokenDataset(Dataset):
    """Sequences of tokens. The target of each token is the one that follows.

    A sample is a window of tokens. Samples have no classes, so partitioners that group by class do not
    apply.
    """

    accuracy_is: ClassVar[str | None] = "the share of tokens that are predicted right"

    @property
    def class_count(self) -> int:
        return 1

    @property
    def input_type(self) -> str:
        return "int64"

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Different tokens."""

    @property
    def outputs(self) -> int:
        return self.vocabulary

    @property
    def target_shape(self) -> tuple[int, ...]:
        return self.shape


def windows(tokens: Tokens, size: int) -> Split:
    """Consecutive windows of `size` tokens, without overlap, and the tokens that follow each of theirs."""
    count = (len(tokens) - 1) // size
    inputs = tokens[: count * size].reshape(count, size)
    targets = tokens[1 : count * size + 1].reshape(count, size)
    return Split(inputs, np.zeros(count, np.int64), targets)


class Text(TokenDataset):
    """A text in windows. Its last tenth is the test split."""

    size: ClassVar[int]  # tokens of both splits

    window: int = Field(64, ge=2, le=4096, description="tokens of a sample")
    level: Literal["bytes", "characters"] = Field(
        "characters",
        description="what a token is: a byte, or one of 96 characters, with one token for all others",
    )

    @property
    def vocabulary(self) -> int:
        return 256 if self.level == "bytes" else 1 + len(ALPHABET)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.window,)

    @property
    def train_samples(self) -> int:
        return (self._train_tokens - 1) // self.window

    @property
    def _train_tokens(self) -> int:
        return self.size - self.size // 10

    @abstractmethod
    def text(self, data_dir: Path) -> str:
        """At least `size` characters. Raises DataError."""

    def load(self, data_dir: Path) -> Data:
        text = self.text(data_dir)
        tokens = tokens_of(text, self.level)[: self.size]
        train, test = tokens[: self._train_tokens], tokens[self._train_tokens :]
        digest = sha256(text.encode()).hexdigest()[:16]
        return Data(windows(train, self.window), windows(test, self.window), self.class_count, None, digest)


def tokens_of(text: str, level: Literal["bytes", "characters"]) -> Tokens:
    """The tokens of a text: int64, shape (tokens,)."""
    if level == "bytes":
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)
    codes = {ord(character): token for token, character in enumerate(ALPHABET, start=1)}
    return np.array([codes.get(ord(character), OTHER) for character in text], np.int64)


class PydocText(Text):
    """Python's own reference, as `help()` shows it: 400,000 tokens of English; no download.

    The text comes with the interpreter (`pydoc_data.topics`), and differs between versions of Python.
    Losses are comparable between runs of the same version. The certificate has a digest of the text: a run
    whose nodes have different ones fails, and a report says which runs have.
    """

    size: ClassVar[int] = 400_000

    def text(self, data_dir: Path) -> str:
        from pydoc_data.topics import topics

        return "\n".join(topics[name] for name in sorted(topics))


class TinyShakespeare(Text):
    """Plays of Shakespeare in one file: 1,115,394 tokens (Karpathy 2015)."""

    size: ClassVar[int] = 1_115_394
    archive: ClassVar[Archive] = Archive(
        "tiny_shakespeare/input.txt",
        "6fb458f1232090904fb40fe944165e91",
        ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",),
    )

    @property
    def files(self) -> tuple[str, ...]:
        return (self.archive.path,)

    def prepare(self, data_dir: Path) -> None:
        self.archive.ensure(data_dir)

    def text(self, data_dir: Path) -> str:
        with self.archive.open_verified(data_dir) as file:
            return file.read().decode("ascii")


class _Task(TokenDataset):
    """Generated sequences. They depend on the parameters alone, not on the seed of the run.

    No input of the test split is in the training split: a sequence whose input is gets drawn again.
    """

    samples: int = Field(2048, ge=1, le=10**7, description="sequences in the training split")
    test_samples: int = Field(256, ge=1, le=10**7, description="sequences in the test split")
    tokens: int = Field(16, ge=3, le=65_536, description="different tokens")
    data_seed: int = Field(0, ge=0, description="seed of the sequences")

    @model_validator(mode="after")
    def _leaves_inputs_for_the_test(self) -> Self:
        if 0 < (different := self.different_inputs) <= self.samples:
            raise ValueError(
                f"samples {self.samples} can have all {different} different inputs, and leave none for the "
                f"test split; allowed: 1 to {different - 1}, or more tokens or length"
            )
        return self

    @property
    def vocabulary(self) -> int:
        return self.tokens

    @property
    def train_samples(self) -> int:
        return self.samples

    @property
    @abstractmethod
    def different_inputs(self) -> int:
        """How many different inputs there are."""

    @abstractmethod
    def sequences(self, count: int, rng: np.random.Generator) -> Tokens:
        """So many sequences, each with one token more than a sample: shape (count, tokens)."""

    def load(self, data_dir: Path) -> Data:
        for_train, for_test = np.random.default_rng(self.data_seed).spawn(2)
        train, test = self.sequences(self.samples, for_train), self.sequences(self.test_samples, for_test)
        known = {sequence.tobytes() for sequence in train[:, :-1]}
        while shared := [at for at, each in enumerate(test[:, :-1]) if each.tobytes() in known]:
            test[shared] = self.sequences(len(shared), for_test)
        return Data(_next_tokens(train), _next_tokens(test), self.class_count, None)


def _next_tokens(sequences: Tokens) -> Split:
    inputs, targets = (np.ascontiguousarray(part) for part in (sequences[:, :-1], sequences[:, 1:]))
    return Split(inputs, np.zeros(len(sequences), np.int64), targets)


class Copy(_Task):
    """Random tokens, then the same ones again; no download.

    The first half cannot be predicted, the second one can. With L random tokens of V kinds, the best mean
    loss of the 2L − 1 targets is (L − 1)·ln V / (2L − 1).
    """

    length: int = Field(16, ge=2, le=2048, description="random tokens before they repeat")

    @property
    def shape(self) -> tuple[int, ...]:
        return (2 * self.length - 1,)

    @property
    def best_loss(self) -> float:
        return (self.length - 1) * log(self.tokens) / (2 * self.length - 1)

    @property
    def different_inputs(self) -> int:
        number: int = self.tokens**self.length
        return number

    def sequences(self, count: int, rng: np.random.Generator) -> Tokens:
        half = rng.integers(self.tokens, size=(count, self.length))
        return np.concatenate([half, half], axis=1)


class Induction(_Task):
    """Different tokens, one of them again, and the one that followed it before; no download.

    Predicting the last token takes an induction head (Olsson et al. 2022, "In-context Learning and
    Induction Heads"): find the earlier occurrence of the present token, and look at what followed. A
    sequence has L different tokens of V kinds, in random order, then one of the first L − 1 of them, and
    what followed it. The best mean loss of the L + 1 targets is
    (Σ_{i=1}^{L−1} ln(V − i) + ln(L − 1)) / (L + 1).
    """

    tokens: int = Field(32, ge=3, le=65_536, description="different tokens")
    length: int = Field(16, ge=3, le=2048, description="different tokens in a sequence")

    @model_validator(mode="after")
    def _are_different(self) -> Self:
        if self.length > self.tokens:
            raise ValueError(f"length {self.length} needs as many different tokens, not {self.tokens}")
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.length + 1,)

    @property
    def best_loss(self) -> float:
        first = sum(log(self.tokens - known) for known in range(1, self.length))
        return (first + log(self.length - 1)) / (self.length + 1)

    @property
    def different_inputs(self) -> int:
        ordered: int = perm(self.tokens, self.length)
        return ordered * (self.length - 1)

    def sequences(self, count: int, rng: np.random.Generator) -> Tokens:
        # The first `length` of a random order of all tokens.
        different = rng.random((count, self.tokens)).argsort(axis=1)[:, : self.length]
        at = rng.integers(self.length - 1, size=(count, 1))
        last = np.take_along_axis(different, np.concatenate([at, at + 1], axis=1), axis=1)
        return np.concatenate([different, last], axis=1)
