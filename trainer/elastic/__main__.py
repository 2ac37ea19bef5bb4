"""torchrun's agent of one node: `python -m trainer.elastic [torchrun's arguments] -m trainer`.

SHARDYARD_NODE   its number; beside it, what `python -m trainer` is told, which the ranks have from it
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

from trainer.elastic.command import BACKEND
from trainer.elastic.rendezvous import Rendezvous
from trainer.events import EventWriter, signal_name
from trainer.spec import RunSpec
from trainer.watch import end_with


class Obituary(logging.Handler):
    """Leaves a last word for a rank that was killed: its agent alone knows by which signal.

    torchrun's agent says it in its log, once per attempt that is lost, of the rank that it missed first.
    """

    LOGGER = "torch.distributed.elastic.multiprocessing.api"
    SAID = "failed (exitcode: %s) local_rank: %s (pid: %s) of binary: %s"

    def __init__(self, spec: RunSpec, node: int, directory: Path) -> None:
        super().__init__(logging.ERROR)
        self._key, self._directory = spec.key, directory
        self._first = node * spec.processes_per_node

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg != self.SAID or not isinstance(record.args, tuple):
            return
        code, local_rank, *_ = record.args
        if isinstance(code, int) and isinstance(local_rank, int) and code < 0:  # else it has spoken itself
            name, attempt = signal_name(-code), int(os.environ["SHARDYARD_ATTEMPT"])
            rank, prefix = self._first + local_rank, os.environ.get("SHARDYARD_PREFIX", "rank {rank} | ")
            writer = EventWriter(self._key, rank, self._directory, prefix=prefix)
            writer.write("died", cause=f"killed by {name}", signal=name, attempt=attempt)


def main(arguments: list[str], env: Mapping[str, str]) -> None:
    """Be the agent of one node, until its ranks have ended."""
    spec = RunSpec.model_validate_json(Path(env["SHARDYARD_SPEC"]).read_text(encoding="utf-8"))
    node = int(env["SHARDYARD_NODE"])
    end_with(int(env["SHARDYARD_ORCHESTRATOR"]))
    logging.getLogger(Obituary.LOGGER).addHandler(Obituary(spec, node, Path(env["SHARDYARD_OUT"])))
    rendezvous_handler_registry.register(
        BACKEND, lambda parameters: Rendezvous(spec, node, parameters.endpoint)
    )
    run.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
