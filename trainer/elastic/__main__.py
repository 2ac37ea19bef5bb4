"""torchrun's agent of one node: `python -m trainer.elastic [torchrun's arguments] -m trainer`.

SHARDYARD_NODE       its number; beside it, what `python -m trainer` is told, which the ranks have from it
SHARDYARD_MEMORY_MB  of a container: the memory that it is held to, in MiB
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

from trainer.core.cgroup import measure
from trainer.core.events import EventWriter, signal_name
from trainer.elastic.command import BACKEND
from trainer.elastic.rendezvous import Rendezvous
from trainer.launch.watchdog import end_with
from trainer.spec.run_spec import RunSpec


class ExitReportHandler(logging.Handler):
    """Leaves a last word for a rank that was killed: its agent alone knows by which signal.

    torchrun's agent says it in its log, once per attempt that is lost, of the rank that it missed first.
    Where it has several that may be a peer of the killed one, which is then known as gone without a word.
    A container's count of what the kernel killed for want of memory is of all attempts: only who looks
    each time knows of which.
    """

    LOGGER = "torch.distributed.elastic.multiprocessing.api"
    SAID = "failed (exitcode: %s) local_rank: %s (pid: %s) of binary: %s"

    def __init__(
        self,
        spec: RunSpec,
        node: int,
        directory: Path,
        memory_mb: str | None = None,
        killed_for_memory: Callable[[], int] = lambda: measure().out_of_memory,
    ) -> None:
        """memory_mb: None where the node has no memory of its own. killed_for_memory: processes so far."""
        super().__init__(logging.ERROR)
        self._key, self._directory = spec.key, directory
        self._first = node * spec.processes_per_node
        self._memory_mb, self._killed_for_memory = memory_mb, killed_for_memory
        self._known = killed_for_memory()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg != self.SAID or not isinstance(record.args, tuple):
            return
        code, local_rank, *_ = record.args
        before, self._known = self._known, self._killed_for_memory()
        if isinstance(code, int) and isinstance(local_rank, int) and code < 0:  # else it has spoken itself
            name, attempt = signal_name(-code), int(os.environ["SHARDYARD_ATTEMPT"])
            rank, prefix = self._first + local_rank, os.environ.get("SHARDYARD_PREFIX", "rank {rank} | ")
            writer = EventWriter(self._key, rank, self._directory, prefix=prefix)
            cause = f"killed by {name}"
            if self._memory_mb and code == -signal.SIGKILL and self._known > before:
                cause = f"killed: its node needed more than {self._memory_mb} MiB of memory"
            writer.write("died", cause=cause, signal=name, attempt=attempt)


def main(arguments: list[str], env: Mapping[str, str]) -> None:
    """Be the agent of one node, until its ranks have ended."""
    spec = RunSpec.model_validate_json(Path(env["SHARDYARD_SPEC"]).read_text(encoding="utf-8"))
    node = int(env["SHARDYARD_NODE"])
    end_with(int(env["SHARDYARD_PARENT_PID"]))
    obituary = ExitReportHandler(spec, node, Path(env["SHARDYARD_OUT"]), env.get("SHARDYARD_MEMORY_MB"))
    logging.getLogger(ExitReportHandler.LOGGER).addHandler(obituary)
    rendezvous_handler_registry.register(
        BACKEND, lambda parameters: Rendezvous(spec, node, parameters.endpoint)
    )
    run.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
