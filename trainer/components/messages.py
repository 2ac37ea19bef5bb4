"""What is asked about components, and answered by a process that runs users' code. Runs none itself.

An answer is checked where it enters: types, lengths, control characters, and that a file is named by a path
below the component's directory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from trainer.components.kind import Outcome
from trainer.core.record import Amount, Count, Record, Share, Text, one_line, printable

Values = dict[str, Any]

FIT = ("model", "dataset", "loss", "optimizer")  # that must fit together

MAX_ANSWER = 64 * 2**20  # bytes
MAX_FILES = 10_000
MAX_NAMES = 1000  # of parameters
MAX_TEXT = 4000  # characters of an error
MAX_DEPTH = 16  # of values in each other

JSON = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")


class Place(BaseModel):
    """Where a component is: a registered name, or what is imported. parameters: its own."""

    model_config = JSON

    registered: str = ""
    directory: str = ""
    module: str = ""
    attribute: str = ""
    parameters: Values = {}


class Request(BaseModel):
    """Asks one thing about a component or about a run.

    do: `find` the components that `place` defines and their kinds; `load` one, for a run; `open` one, whose
    laws are tried then: `try` the law `law` on `given`; its `digest`; whether the components of a run `fit`
    together; the costs of the blocks (`profile`), the parameters of ranks with split points (`ranks`) or
    the partition (`partition`) of `run`. `try` and `digest` are about the component that was opened last.
    forms: components of the run by field, as far as they are known. dataset: a dataset whose samples a
    component is tried on; None: one that it takes. batch: a file with some samples of a user's dataset.
    limit_s: seconds for the answer.
    """

    model_config = JSON

    do: Literal["find", "load", "open", "try", "digest", "fit", "profile", "ranks", "partition"]
    kind: str = ""
    label: str = ""
    place: Place = Place()
    forms: Values = {}
    dataset: Place | None = None
    data_dir: str = ""
    batch: str = ""
    ranks: int = 1
    batch_size: int = 1
    equals: str = ""
    law: str = ""
    given: Values = {}
    run: Values = {}
    split_points: list[str] = []
    limit_s: float


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


class Found(Record):
    """A component that a file defines. kind: its kind; empty if that is unclear."""

    name: ShortText
    kind: ShortText


class BlockCosts(Record):
    """Costs of one block, as by `trainer.training.profile.BlockProfile`."""

    name: ShortText
    parameters: Count
    largest_tensor: Count
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


class Answer(Record):
    """What was found, or an error.

    found: the components of a file. facts: what a spec must know. parameters: those that differ from the
    defaults. files: the files in the directory that the component needs. module: digest of an installed
    module. samples: some samples of a dataset, an .npz file in base64. data: the samples that an opened
    component is tried on. first: the inputs of its laws; a text: why there are none. left_out: why it is no
    component after all. outcome: of a law. digest: what the component computes. blocks, rank_parameters,
    partition: figures of a run. error: why the component cannot be used. ended: how its process ended
    instead of answering. invalid: what is wrong with parameters, of the component or of `dataset`.
    allowed: their names.
    """

    model_config = JSON

    found: list[Found] = Field(default=[], max_length=MAX_FILES)
    facts: Facts = Field(default={})
    parameters: Parameters = Field(default={})
    files: list[Annotated[str, AfterValidator(_below)]] = Field(default=[], max_length=MAX_FILES)
    module: Annotated[str, Field(pattern=r"\A([0-9a-f]{16})?\z")] = ""
    samples: str = ""
    data: ShortText = ""
    first: dict[ShortText, list[Facts] | ShortText] = Field(default={}, max_length=100)
    left_out: ShortText = ""
    outcome: Outcome = Outcome()
    digest: ShortText = ""
    blocks: list[BlockCosts] = Field(default=[], max_length=MAX_FILES)
    rank_parameters: list[Count] = Field(default=[])
    partition: PartitionFigures | None = None
    error: ShortText = ""
    ended: ShortText = ""
    invalid: list[Invalid] = Field(default=[], max_length=MAX_NAMES)
    allowed: list[ShortText] = Field(default=[], max_length=MAX_NAMES)
    of_dataset: bool = False
