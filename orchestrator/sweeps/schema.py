"""JSON Schemas of runs and sweep files, for editors that complete and check YAML."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.registries import RUNTIME_CLASSES
from orchestrator.sweeps.equal_cpus import CPUS, EQUAL
from orchestrator.sweeps.load import with_options
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

Schema = dict[str, Any]
EQUAL_CPUS = "the same share of the machine's cores for every node of every run; not with runtime local"
LONG = 600  # characters of a parameter's schema
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def run_schema() -> Schema:
    """JSON Schema of a RunSpec."""
    return {"$schema": DIALECT, **_of_a_run()}


def sweep_schema() -> Schema:
    """JSON Schema of a sweep file.

    A run's fields are defined once, as `#/$defs/Run`. Blocks refer to them in three forms: one value for
    each field (Values), a list of values (Axes), and a value or a list of values that select runs
    (Selection).
    """
    schema, run = with_options(RUNTIME_CLASSES).model_json_schema(), _of_a_run()
    shared = run.pop("$defs", {})
    fields: dict[str, Schema] = {
        name: {"$ref": f"#/$defs/Run/properties/{name}"} for name in run["properties"]
    }
    fields[CPUS] = {"anyOf": [fields[CPUS], {"const": EQUAL, "description": EQUAL_CPUS}]}
    # A component's parameter, `strategy.init`: which ones exist depends on the component.
    parameter = rf"^({'|'.join(REGISTRIES)})\.[a-z0-9_]+$"

    def mapping(properties: Schema, parameters: Schema | bool) -> Schema:
        return {
            "type": "object",
            "properties": properties,
            "patternProperties": {parameter: parameters},
            "additionalProperties": False,
        }

    values_of = {"type": "array", "minItems": 1}
    definitions = {
        "Run": run,
        "Values": mapping(fields, True),
        "Axes": mapping({name: {**values_of, "items": field} for name, field in fields.items()}, values_of),
        # A component is selected by its name, so its form is not checked here.
        "Selection": mapping(dict.fromkeys(fields, True), True),
    }
    definitions |= shared | schema["$defs"]
    block, published = definitions["Block"]["properties"], definitions["Published"]["properties"]
    _refer(schema["properties"]["base"], "Values")
    _refer(schema["properties"]["quick"], "Selection")
    _refer(block["base"], "Values")
    _refer(block["axes"], "Axes")
    _refer(block["skip"]["items"], "Selection")
    _refer(block["quick"], "Selection", optional=True)
    _refer(published["runs"], "Selection")
    _refer(definitions["AblationStep"]["properties"]["runs"], "Selection")
    return {"$schema": DIALECT, **schema, "$defs": definitions}


def _of_a_run() -> Schema:
    """The schema of a RunSpec, whose `link` may be one link, short for that of all nodes."""
    schema = RunSpec.model_json_schema()
    schema["properties"]["link"]["anyOf"].insert(0, {"$ref": "#/$defs/Link"})
    schema["$defs"] |= _shared_parameters(schema["properties"])
    return schema


def _shared_parameters(fields: Schema) -> Schema:
    """Definitions of long parameters that several components have, which then refer to them.

    An aggregation of a strategy, for example, has the forms of all aggregations.
    """
    places: dict[tuple[str, str], list[Schema]] = {}
    for field in REGISTRIES:
        for form in fields[field]["anyOf"]:
            parameters = form.get("properties", {})
            for name, parameter in parameters.items():
                places.setdefault((name, json.dumps(parameter)), []).append(parameters)
    found: Schema = {}
    for (name, text), forms in places.items():
        if len(forms) > 1 and len(text) > LONG:
            assert name not in found, name  # noqa: S101  (two forms of one name need two definitions)
            found[name] = json.loads(text)
            for parameters in forms:
                parameters[name] = {"$ref": f"#/$defs/{name}"}
    return found


def _refer(field: Schema, definition: str, *, optional: bool = False) -> None:
    """Replace a field's form by a reference; its description and default stay."""
    for keyword in ("type", "anyOf", "additionalProperties"):
        field.pop(keyword, None)
    reference = {"$ref": f"#/$defs/{definition}"}
    field |= {"anyOf": [reference, {"type": "null"}]} if optional else reference


def schema_files() -> dict[str, str]:
    """The texts of run.schema.json and sweep.schema.json, by file name."""
    schemas = {"run.schema.json": run_schema(), "sweep.schema.json": sweep_schema()}
    return {name: json.dumps(schema, indent=2) + "\n" for name, schema in schemas.items()}
