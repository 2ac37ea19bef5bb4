"""What builds the JSON Schemas into the wheel, since the repository does not have them (pyproject.toml)."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SCHEMAS = "orchestrator/shipped_files/schemas"  # beside the shipped sweeps, whose first line names one


class Schemas(BuildHookInterface[Any]):
    """Adds the schemas of the sources that are built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, self.root)
        from orchestrator.sweeps.schema import schema_files

        self._written = TemporaryDirectory(prefix="schemas-")
        for name, text in schema_files().items():
            (path := Path(self._written.name, name)).write_text(text, encoding="utf-8")
            build_data["force_include"][str(path)] = f"{SCHEMAS}/{name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self._written.cleanup()
