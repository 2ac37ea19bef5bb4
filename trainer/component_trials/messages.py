"""Questions about users' components that the orchestrator asks, and answers. Runs no users' code.

An answer comes from a process that runs users' code, so everything in it is checked where it enters: types,
lengths, control characters, and that a file is named by a path below the component's directory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from trainer.core.record import Amount, Count, Record, Share, Text, one_line, printable

Values = dict[str, Any]

FIELDS = ("dataset", "model", "loss", "optimizer", "augmentation", "partitioner", "strategy")
FIT = ("model", "dataset", "loss", "optimizer")  # that must fit together

MAX_ANSWER = 64 * 2**20  # bytes
MAX_SAMPLES = 32 * 2**20  # bytes of the samples of a dataset, which are a third longer in an answer
MAX_FILES = 10_000
MAX_NAMES = 1000  # of parameters
MAX_TEXT = 4000  # characters of an error
MAX_DEPTH = 16  # of values in each other

JSON = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")


class TrialRequest(BaseModel):
    """Asks about one component, whether those of a run fit together, or for figures of a run.

    kind: the kind of the component, or `fit` for the components of a run; `profile`: the costs of the
    blocks of `run`; `ranks`: the parameters of its ranks with these split points; `partition`: its
    partition. forms: the components of the run by field; those that the question needs are resolved.
    module, attribute, parameters: the component, as the sweep file has it. directory: the directory of
    its file, or of the sweep file. data_dir: the data directory. batch: a file with some samples of a
    user's dataset. ranks, batch_size: those of the run.
    """

    model_config = JSON

    kind: Literal[
        "dataset",
        "model",
        "loss",
        "optimizer",
        "augmentation",
        "partitioner",
        "strategy",
        "fit",
        "profile",
        "ranks",
        "partition",
    ]
    forms: Values = {}
    module: str = ""
    attribute: str = ""
    parameters: Values = {}
    directory: str = ""
    data_dir: str = ""
    batch: str = ""
    ranks: int = 1
    parts: int = 1
    batch_size: int = 1
    run: Values = {}
    split_points: list[str] = []


def _below(name: str) -> str:
    """A path below a directory. Raises ValueError for any other."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or str(path) != name or not path.parts:
        raise ValueError("must be a path below the component's directory")
    if one_line(name) != name:
        raise ValueError("has control characters")
    return name


def _plain(value: Any, shown: Callable[[str], str] = printable, depth: int = 0) -> Any:
    """A value of JSON. Raises ValueError if it is nested too deeply or a text is not as it is shown."""
    if depth > MAX_DEPTH:
        raise ValueError("is nested too deeply")
    match value:
        case dict():
            return {_plain(key, shown): _plain(item, shown, depth + 1) for key, item in value.items()}
        case list():
            return [_plain(item, shown, depth + 1) for item in value]
        case str() if shown(value) != value:
            raise ValueError("has control characters")
    return value


Facts = Annotated[Values, AfterValidator(partial(_plain, shown=one_line))]
Parameters = Annotated[Values, AfterValidator(_plain)]
ShortText = Annotated[Text, Field(max_length=MAX_TEXT)]


class Invalid(Record):
    """What is wrong with a parameter, as by pydantic. ctx: texts."""

    type: ShortText
    loc: list[int | ShortText] = Field(max_length=MAX_DEPTH)
    msg: ShortText
    input: Annotated[Any, AfterValidator(_plain)] = None
    ctx: dict[ShortText, ShortText] = Field(default={})


class BlockCosts(Record):
    """Costs of one block, as by `trainer.training.profile.BlockProfile`."""

    name: ShortText
    parameters: Count
    output_shape: list[Count] = Field(max_length=MAX_DEPTH)
    flops: Amount
    output_bytes: Amount
    saved_bytes: Amount
    forward_s: Annotated[Amount, Field(gt=0)]
    backward_s: Amount


class PartitionFigures(Record):
    """A partition, as by `trainer.training.partition.PartitionSummary`."""

    labels: list[list[Count]]
    coverage: Share
    overlap: Share
    js_divergence: list[Amount]
    earth_movers_distance: list[Amount]


class TrialAnswer(Record):
    """What was found: facts or figures, or an error.

    parameters: those that differ from the defaults. files: the files in the directory that the
    component needs. module: digest of an installed module. samples: samples of a dataset, an .npz file in
    base64. error: why the component cannot be used. invalid: what is wrong with its parameters. allowed:
    the names that they may have. blocks, rank_parameters, partition: figures of a run.
    """

    model_config = JSON

    facts: Facts = Field(default={})
    parameters: Parameters = Field(default={})
    files: list[Annotated[str, AfterValidator(_below)]] = Field(default=[], max_length=MAX_FILES)
    module: Annotated[str, Field(pattern=r"\A([0-9a-f]{16})?\z")] = ""
    samples: str = ""
    blocks: list[BlockCosts] = Field(default=[], max_length=MAX_FILES)
    rank_parameters: list[Count] = Field(default=[])
    partition: PartitionFigures | None = None
    error: ShortText = ""
    invalid: list[Invalid] = Field(default=[], max_length=MAX_NAMES)
    allowed: list[ShortText] = Field(default=[], max_length=MAX_NAMES)
