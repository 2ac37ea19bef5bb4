"""The torchrun agent of one node: `python -m trainer.torchrun_restarts [torchrun's arguments] -m trainer`.

SHARDYARD_NODE       the node's number
SHARDYARD_MEMORY_MB  memory limit of the container in MiB; unset for a local process

Ranks inherit the environment, so it also has the variables of `python -m trainer`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from torch.distributed import run
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

from trainer.core.cgroup import measure
from trainer.core.events import EventWriter, signal_name
from trainer.core.regular_files import read_regular
from trainer.launch.watchdog import end_with
from trainer.spec.run_spec import RunSpec
from trainer.torchrun_restarts.command import BACKEND
from trainer.torchrun_restarts.rendezvous import Rendezvous


class ExitReportHandler(logging.Handler):
    """Writes the exit report of a killed rank, since only its torchrun agent knows the signal.

    The agent logs it once per lost attempt, for the first rank that it found gone. With several ranks per
    node that may be a peer of the killed rank, which then has no exit report.
    A container counts its out-of-memory kills over all attempts, so the handler reads the counter in each.
    """

    LOGGER = "torch.distributed.elastic.multiprocessing.api"
    FORMAT = "failed (exitcode: %s) local_rank: %s (pid: %s) of binary: %s"

    def __init__(
        self,
        spec: RunSpec,
        node: int,
        directory: Path,
        memory_mb: str | None = None,
        killed_for_memory: Callable[[], int] = lambda: measure().out_of_memory,
    ) -> None:
        """memory_mb: None without a limit. killed_for_memory: number of out-of-memory kills so far."""
        super().__init__(logging.ERROR)
        self._key, self._directory = spec.key, directory
        self._first = node * spec.processes_per_node
        self._memory_mb, self._killed_for_memory = memory_mb, killed_for_memory
        self._known = killed_for_memory()

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg != self.FORMAT or not isinstance(record.args, tuple):
            return
        code, local_rank, *_ = record.args
        before, self._known = self._known, self._killed_for_memory()
        if (
            isinstance(code, int) and isinstance(local_rank, int) and code < 0
        ):  # else it has written its own
            name, attempt = signal_name(-code), int(os.environ["SHARDYARD_ATTEMPT"])
            rank, prefix = self._first + local_rank, os.environ.get("SHARDYARD_PREFIX", "rank {rank} | ")
            cause = f"killed by {name}"
            if self._memory_mb and code == -signal.SIGKILL and self._known > before:
                cause = f"killed: its node needed more than {self._memory_mb} MiB of memory"
            with closing(EventWriter(self._key, rank, self._directory, prefix=prefix)) as writer:
                writer.write("died", cause=cause, signal=name, attempt=attempt)


def main(arguments: list[str], env: Mapping[str, str]) -> None:
    """Run the agent of one node until its ranks have ended."""
    spec = RunSpec.model_validate_json(read_regular(Path(env["SHARDYARD_SPEC"])))
    node = int(env["SHARDYARD_NODE"])
    end_with(int(env["SHARDYARD_PARENT_PID"]))
    handler = ExitReportHandler(spec, node, Path(env["SHARDYARD_OUT"]), env.get("SHARDYARD_MEMORY_MB"))
    logging.getLogger(ExitReportHandler.LOGGER).addHandler(handler)
    rendezvous_handler_registry.register(
        BACKEND, lambda parameters: Rendezvous(spec, node, parameters.endpoint)
    )
    run.main(arguments)


if __name__ == "__main__":
    main(sys.argv[1:], os.environ)
