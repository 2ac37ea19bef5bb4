"""One node process: `python -m trainer`, configured by its environment.

SHARDYARD_SPEC         file with the RunSpec, JSON
SHARDYARD_DATA         data directory
SHARDYARD_CODE         directory with the code of users' components
SHARDYARD_OUT          directory for events and weights; unset: console output only
SHARDYARD_CHECKPOINTS  directory for checkpoints; the run resumes from any checkpoint found here
SHARDYARD_CONSOLE      file for this rank's console output; {node} stands for its node
SHARDYARD_PREFIX       prefix of console lines; {rank} stands for the rank
SHARDYARD_LAUNCHER     what started the ranks (trainer/launch/launchers.py); unset: detected
SHARDYARD_RENDEZVOUS   rendezvous of torch.distributed; unset: where the launcher says that rank 0 is
SHARDYARD_PARENT_PID   process to end with
SHARDYARD_END_WITH_PARENT  set if the rank ends with the process that has started it, such as slurmstepd
SHARDYARD_ATTEMPT      how many times torchrun has restarted the ranks
SHARDYARD_MEMBERSHIP   file that shows which ranks are alive; the others continue when one is lost
SHARDYARD_INCARNATION  how often this rank alone was started again
SHARDYARD_STOP         directory through which ranks agree where to stop and write a checkpoint
SHARDYARD_REQUEUES     how often a batch system has started the run again
SHARDYARD_CPU_QUOTA    CPU quota that this container must have before training starts
SHARDYARD_LINKED       addresses of the other nodes, which must pass a switch before ranks connect
SHARDYARD_THROTTLED    directory of the throttle's marks; ranks of the slower local node wait for theirs
SHARDYARD_VIRTUAL      options of virtual nodes, JSON: this process trains all ranks in simulated time
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from trainer.core.events import EventWriter
from trainer.core.regular_files import read_regular
from trainer.data.cache import DatasetCache
from trainer.launch.environment import read_context
from trainer.launch.interface import interface_variables
from trainer.launch.launchers import LaunchError
from trainer.launch.ranks import attempt_fields, report_failure, run_forked, run_process, run_threads
from trainer.launch.watchdog import Watchdog
from trainer.spec.run_spec import RunSpec
from trainer.training.task import Task


def main(datasets: DatasetCache | None = None) -> int:
    """Run this process's ranks. datasets: already in memory, if a warm parent has forked this process."""
    env = os.environ
    _be_killed_first()
    spec = RunSpec.model_validate_json(read_regular(Path(env["SHARDYARD_SPEC"])))
    try:
        context = read_context(spec, env)
        env.update(interface_variables(spec, env))
        if context.out_dir:
            context.out_dir.mkdir(parents=True, exist_ok=True)
    except (LaunchError, OSError) as error:
        print(f"trainer: {error}", file=sys.stderr)
        return 2
    if console := env.get("SHARDYARD_CONSOLE"):
        node = context.rank // spec.processes_per_node
        _redirect_console(Path(console.replace("{node}", str(node))))
    orchestrator = int(env["SHARDYARD_PARENT_PID"]) if "SHARDYARD_PARENT_PID" in env else None
    word = "node-" if spec.processes_per_node == 1 else "rank "
    prefix = env.get("SHARDYARD_PREFIX", word + "{rank} | ")
    events = EventWriter(spec.key, context.rank, context.out_dir, prefix=prefix)
    task = Task(spec, context.data_dir, datasets or DatasetCache())

    if "SHARDYARD_VIRTUAL" in env:
        from trainer.virtual.options import VirtualOptions
        from trainer.virtual.run import run_virtual

        virtual = VirtualOptions.model_validate_json(env["SHARDYARD_VIRTUAL"])
        trained = _load_data(task, events) and run_virtual(context, task, events, orchestrator, virtual)
        return 0 if trained else 1
    if spec.topology == "single":
        run = run_forked if spec.strategy.forks else run_threads
        return 0 if _load_data(task, events) and run(context, task, events, orchestrator) else 1
    loss = "the orchestrator is gone"
    if env.get("SHARDYARD_END_WITH_PARENT"):
        orchestrator, loss = os.getppid(), f"stopped by the loss of its parent {_parent_name()}"
    with Watchdog([events], orchestrator, context.stop_dir, loss) as watchdog:
        events.write("start", pid=os.getpid(), **attempt_fields(context))
        return 0 if _load_data(task, events) and run_process(context, task, events, watchdog) else 1


def _load_data(task: Task, events: EventWriter) -> bool:
    """Load torch and the data before any rank starts. Reports a failure as an event."""
    if not task.spec.strategy.trains:
        return True
    import torch

    torch.set_num_threads(task.spec.threads_for(events.rank))
    try:
        task.data  # noqa: B018
    except Exception as error:
        report_failure(events, error)
        return False
    return True


def _parent_name() -> str:
    return Path(f"/proc/{os.getppid()}/comm").read_text(encoding="utf-8").strip()


def _be_killed_first() -> None:
    """Let an out-of-memory kill hit this process, not the agent of its container, which reports it."""
    with suppress(OSError):  # no Linux
        Path("/proc/self/oom_score_adj").write_text("1000")


def _redirect_console(path: Path) -> None:
    """Redirect this process's output, C libraries included, to a file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit: gloo's threads can abort the interpreter's own shutdown after training has succeeded.
    os._exit(code)
