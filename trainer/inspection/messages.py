"""Questions about users' components that the orchestrator asks, and answers. Runs no users' code."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

Values = dict[str, Any]

FIELDS = ("dataset", "model", "loss", "optimizer", "augmentation", "partitioner", "strategy")

JSON = ConfigDict(frozen=True, extra="forbid", strict=True, ser_json_inf_nan="constants")


class Request(BaseModel):
    """Asks about one component, or whether those of a run fit together.

    kind: of the component; `fit`: of a run. forms: the components of the run by field; those that the
    question needs are resolved. For a component: module, attribute, parameters: as in the sweep file.
    directory: of its file, or of the sweep file. data_dir: the data directory. batch: file for some samples
    of a dataset, to write or to read. ranks, batch_size: of the run.
    """

    model_config = JSON

    kind: Literal["dataset", "model", "loss", "optimizer", "augmentation", "partitioner", "strategy", "fit"]
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


class Answer(BaseModel):
    """What was found: facts, or an error.

    parameters: those that differ from the defaults. files: in the directory, that the component needs.
    module: digest of an installed module. error: why it cannot be used. invalid: what is wrong with its
    parameters, as by pydantic; allowed: the names that they may have.
    """

    model_config = JSON

    facts: Values = {}
    parameters: Values = {}
    files: list[str] = []
    module: str = ""
    error: str = ""
    invalid: list[Values] = []
    allowed: list[str] = []
