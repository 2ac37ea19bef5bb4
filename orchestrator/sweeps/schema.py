"""JSON Schemas of runs and sweep files, for editors that complete and check YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from orchestrator.results.store import write_atomic
from orchestrator.sweeps.load import SweepSpec
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

Schema = dict[str, Any]


def run_schema() -> Schema:
    """JSON Schema of a RunSpec."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **RunSpec.model_json_schema()}


def sweep_schema() -> Schema:
    """JSON Schema of a sweep file: base, axes and skip hold a run's fields."""
    schema = SweepSpec.model_json_schema()
    fields = RunSpec.model_json_schema()
    properties: Schema = fields["properties"]
    # `strategy.init`: a parameter of a component; which ones there are depends on the component.
    parameters: Schema = {rf"^({'|'.join(REGISTRIES)})\.[a-z0-9_]+$": {}}
    values = {
        "type": "object",
        "properties": properties,
        "patternProperties": parameters,
        "additionalProperties": False,
    }
    axes = {
        **values,
        "properties": {
            name: {"type": "array", "minItems": 1, "items": field} for name, field in properties.items()
        },
        "patternProperties": {pattern: {"type": "array", "minItems": 1} for pattern in parameters},
    }
    skip = {
        **values,
        # A component is skipped by its name; every field takes a value or a list of them.
        "properties": {name: {} for name in properties},
    }
    schema["properties"]["base"] |= values
    some = {**skip, "description": "fields, with a value or a list of values"}
    schema["properties"]["quick"] |= some
    schema["$defs"]["Published"]["properties"]["runs"] |= some
    schema["$defs"]["AblationStep"]["properties"]["runs"] |= some
    block: Schema = schema["$defs"]["Block"]["properties"]
    block["quick"] |= some
    block["base"] |= values
    block["axes"] |= axes
    block["skip"]["items"] = skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "$defs": {**schema["$defs"], **fields.get("$defs", {})},
    }


def write_schemas(directory: Path) -> list[Path]:
    """Write run.schema.json and sweep.schema.json."""
    written = []
    for name, schema in [("run", run_schema()), ("sweep", sweep_schema())]:
        path = directory / f"{name}.schema.json"
        write_atomic(path, json.dumps(schema, indent=2) + "\n")
        written.append(path)
    return written
