"""RunSpec: everything that defines one run, checked before anything starts. Imports no torch."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

from pydantic import model_validator

from trainer.spec.checks import CHECKS
from trainer.spec.fields import (
    NODE_LIMITS,
    THREAD_VARIABLES,
    RunFields,
    threads_per_rank,
    with_derived_defaults,
)
from trainer.spec.registries import ATTACKS, REGISTRIES

__all__ = ["NODE_LIMITS", "THREAD_VARIABLES", "RunSpec", "with_derived_defaults"]

# Fields that do not change what is computed, and so are not part of the run key.
_NOT_IN_KEY = {"timeout_s", "restarts", "trace"}


class RunSpec(RunFields):
    """One run with all of its fields. A component is a name or `{name: ..., parameter: ...}`."""

    @model_validator(mode="after")
    def _check(self) -> RunSpec:
        for check in CHECKS:
            if error := check(self):
                raise error
        return self

    def canonical(self) -> dict[str, Any]:
        """The fields that define the computation, without defaults.

        Equal for runs that compute the same, and unchanged by fields that a later version adds.
        """
        fields: dict[str, Any] = {}
        for field, value in self:
            info = type(self).model_fields[field]
            if field in REGISTRIES:
                dumped = REGISTRIES[field].dump(value, exclude_defaults=True)
                if dumped != {"name": info.default}:
                    fields[field] = dumped
            elif field == "threads":
                if value != threads_per_rank(self.cpus, self.processes_per_node):
                    fields[field] = value
            elif field == "lr_scaling" and self.batch_multiplier == 1:
                continue  # without effect
            elif field == "link":
                if self.link is not None and self.has_links:
                    fields[field] = self.link.canonical
            elif field == "faults":
                if value:
                    fields[field] = [
                        fault.model_dump(mode="json", exclude_defaults=True) for fault in value
                    ]
            elif field == "byzantine":
                if self.byzantine:
                    attack = ATTACKS.dump(self.byzantine.attack, exclude_defaults=True)
                    fields[field] = {"nodes": self.byzantine_nodes, "attack": attack}
            elif field not in _NOT_IN_KEY and value != info.default:
                fields[field] = value
        return fields

    @property
    def key(self) -> str:
        """The run key: the same for the same computation in every sweep, order and version."""
        digest = sha256(json.dumps(self.canonical(), sort_keys=True).encode()).hexdigest()[:8]
        ranks = f"n{self.nodes}" + (f"x{self.processes_per_node}" if self.processes_per_node > 1 else "")
        strategy = re.sub(r"\W+", "_", self.name_of("strategy").rpartition("/")[2])
        return f"{strategy}-{self.transport}-{ranks}-s{self.seed}-{digest}"
