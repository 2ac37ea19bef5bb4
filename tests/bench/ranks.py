"""Ranks that measure something: processes as in a local run, with another main function."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from orchestrator.results.store import RunPaths, write_atomic
from orchestrator.runtimes.launch_plan import LaunchPlan
from orchestrator.runtimes.local.processes import processes
from orchestrator.runtimes.local.runtime import LocalRun
from trainer.comm.base import Communicator
from trainer.core.context import NodeContext
from trainer.launch.environment import read_context
from trainer.launch.ranks import connect
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec


def measured_by_ranks(run: RunSpec, module: str, patience_s: float) -> Any:
    """What rank 0 has measured: the content of turns.json, which it writes.

    A rank that fails, or takes too long, ends the benchmark with the ranks' logs.

    Args:
        run: says how many ranks there are and what connects them.
        module: which each rank executes, instead of the trainer.
        patience_s: until the ranks have taken too long.
    """
    with tempfile.TemporaryDirectory() as directory:
        paths = RunPaths(Path(directory))
        paths.live.mkdir()
        write_atomic(paths.spec, run.model_dump_json())
        planned = processes(run, paths, paths.directory, paths.live)
        started = [replace(each, argv=[*each.argv[:-1], module]) for each in planned]
        plan = LaunchPlan(run, paths, paths.directory, processes=started)
        deadline = time.monotonic() + patience_s
        with LocalRun(plan, OutputLimits.of(run)) as handle:
            while (state := handle.wait(1)).running and not state.failing and time.monotonic() < deadline:
                pass
        if state.failing or state.running:
            logs = [path.read_text() for path in sorted(paths.directory.glob("*.log"))]
            sys.exit("\n".join([f"{run.key}: failed or took too long", *logs]))
        return json.loads((paths.live / "turns.json").read_text())


def measure_as_rank(measure: Callable[[Communicator, NodeContext, RunSpec], object]) -> None:
    """Main function of a rank: connect it, and let rank 0 write what `measure` returns to turns.json."""
    run = RunSpec.model_validate_json(Path(os.environ["SHARDYARD_SPEC"]).read_text())
    torch.set_num_threads(run.threads)
    context = read_context(run, os.environ)
    comm = connect(context, threads=1)
    comm.clock.start()
    turns = measure(comm, context, run)
    if context.rank == 0:
        write_atomic(Path(os.environ["SHARDYARD_OUT"]) / "turns.json", json.dumps(turns))
    comm.close()
    sys.stdout.flush()
    os._exit(0)  # as the trainer does: gloo's threads can abort the interpreter's own shutdown
