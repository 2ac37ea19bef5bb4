"""The table of faults. docs/faults.md describes it for users."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM
from typing import Any

from tests.faults import cluster_strikes as clusters
from tests.faults import strikes
from tests.faults.scene import VICTIM, Case, Fault, Moment, Verdict
from tests.faults.strikes import (
    KILL,
    first,
    orchestrator,
    ranks,
    signalled,
    started,
    suspended,
    with_command,
)
from tests.support.places import MPIRUN
from tests.support.runs import SMALL
from trainer.node.home import CONTAINER as HOME

MPI = {"strategy": "all_reduce", "transport": "mpi", "nodes": 2}
GLOO, RPC = {**MPI, "transport": "gloo"}, {**MPI, "transport": "rpc"}
SERVER = {"strategy": "parameter_server", "transport": "gloo", "nodes": 3}
ASYNC = {"strategy": "async_parameter_server", "transport": "rpc", "nodes": 3}
SPLIT = {"strategy": "rpc_split", "transport": "rpc", "nodes": 3}
PIPELINE = {"strategy": "pipeline", "transport": "gloo", "nodes": 3}
CONTINUING = {"strategy": "local_sgd", "transport": "gloo", "nodes": 3, "on_loss": "continue"}
HOGWILD = {"strategy": "hogwild", "transport": "memory", "nodes": 3}
MNIST = {**GLOO, "dataset": "mnist", "model": "mlp", "epochs": 1}
LIMITED = {**GLOO, "memory_mb": 256, "dataset": {"name": "synthetic", "samples": 200_000}}
HUGE = {**SMALL, **GLOO, "dataset": {"name": "synthetic", "samples": 100, "height": 10**6, "width": 10**6}}
EXIT = {**GLOO, "strategy": {"name": "fault_injection", "fault": "exit", "rank": 1, "work_s": 0.3}}


def long(base: dict[str, Any] = GLOO, **fields: Any) -> dict[str, Any]:
    """A run that lasts longer than any case."""
    return {**SMALL, "epochs": 10_000, **base, **fields}


def short(base: dict[str, Any] = GLOO, **fields: Any) -> dict[str, Any]:
    """A run that ends in seconds, so that it can be resumed."""
    return {**SMALL, "epochs": 300, **base, **fields}


RESUMABLE = short(checkpoint_epochs=10)
RESTARTED = short(restarts=3, checkpoint_epochs=10)
LARGE_MODEL = long(HOGWILD, shm_mb=16, model={"name": "mlp", "hidden": [20_000]})
SLOW = short(epochs=1000, checkpoint_epochs=10)  # goes on while ranks or a job start again
REPEATABLE = short(epochs=2000)  # still trains when a cluster has noticed what it has lost
WITHOUT_ROOM = {**GLOO, "cpus": float(clusters.LARGE)}
# Nearly all of its time is evaluation; writing many weights takes a moment.
EVALUATING = long(dataset={"name": "synthetic", "samples": 64, "test_samples": 20_000, "noise": 1.0})
WRITING = short(epochs=3, model={"name": "mlp", "hidden": [8000]}, save_weights=True)

# Verdicts, and patterns that several of them have

NODE = r"\bnode \d"  # any of those to which it happened
COORDINATOR = r"\bcoordinator\b"
LAUNCHER = r"\b(mpirun|launcher)\b"
WARM = r"\bwarm (nodes|container)\b"
KILLED = "SIGKILL|killed together with its container"
STUCK = "stuck|silent|heartbeat|no answer"
NODE_FAILURE = r"lost node yard\d: node failure"


def fails(*said: str, within_s: float = 15, status: str = "failed") -> Verdict:
    """The run fails, or is stopped at its limit, and the sweep goes on."""
    return Verdict((status,), said, within_s, exit_code=1)


def ends_ok(*said: str, within_s: float = 90) -> Verdict:
    """The run ends ok; what has happened is a flag of its row."""
    return Verdict(("ok",), said, within_s, exit_code=0)


def stops(code: int, *said: str, within_s: float = 20) -> Verdict:
    """The sweep stops."""
    return Verdict((), said, within_s, code)


times_out = partial(fails, status="timeout")
FAILS, STOPS = fails(VICTIM, KILLED), stops(-SIGKILL)
FAILS_OR_LATE = replace(FAILS, status=("failed", "ok"), silent=("ok",), within_s=30)  # or it is too late
FAILS_IN_CONTAINER = fails(VICTIM, "container")
RESTARTS, REPEATED = ends_ok(VICTIM, "restarted"), ends_ok(VICTIM, "repeated")
REPEATED_LATE = replace(REPEATED, within_s=150)
FAILS_OR_OK = replace(fails(NODE, "SIGTERM|repeated", within_s=60), status=("failed", "ok"))
FAILS_OR_TIMES_OUT = replace(fails(VICTIM, within_s=70), status=("failed", "timeout"))
COORDINATOR_FAILS = fails(COORDINATOR, within_s=30)
COORDINATOR_STUCK = fails(COORDINATOR, STUCK, within_s=45)
LAUNCHER_FAILS = fails(LAUNCHER, "^mpirun.*SIGKILL")
REPORTS_FULL = fails(VICTIM, "/run/shardyard is full", within_s=30)

BEFORE, START, CONNECTING, CHECKPOINT = Moment.BEFORE, Moment.START, Moment.CONNECTING, Moment.CHECKPOINT
COLD, LOCAL_RAYLETS = ("--cold",), {"RAY_ADDRESS": ""}  # which the sweep starts, not the trial cluster's
EVERYWHERE = {"runtimes": ("local", "docker", "slurm", "ray"), "environment": LOCAL_RAYLETS}
case = partial(Case, run=long())
local, docker = partial(case, runtimes=("local",)), partial(case, runtimes=("docker",))
cold = partial(docker, options=COLD)
again = partial(case, again=True)  # the same command resumes
kill = partial(case, fault=KILL, verdict=FAILS)
kill_again = partial(case, fault=Fault(strikes.kill_again), count=2)

RESUME = again("kill-then-resume", KILL, FAILS_OR_LATE, run=RESUMABLE, moment=CHECKPOINT)
KILL_PARENT = signalled(lambda scene: [ranks(scene)[0].parent()])
PARENT_FAILS, EXITS = fails("process that started all|warm", KILLED), fails(VICTIM, "exit code 0 before it")
OTHER = {"strategy": "fault_injection"}
USED_UP, NOT_RESTARTED = (fails(VICTIM, "after 1 restart", within_s=40), short(epochs=1000, restarts=1))
AGENT_FAILS = fails(r"node \d|torchrun", "SIGKILL|killed", within_s=40)
AGENT_OF_TORCHRUN = signalled(first("trainer.torchrun_restarts"))
SUSPENDED_FAILS, SLOWED = times_out(VICTIM, "suspended", within_s=70), long(timeout_s=60)
SUSPEND = case("suspend", suspended(ranks), SUSPENDED_FAILS, run=SLOWED)
STOP_NODE, STUCK_FAILS = strikes.execute_in_nodes("kill -STOP -1"), fails(VICTIM, STUCK, within_s=60)
IDLE = {"run": short(), "victims": (2,), "next_run": {"nodes": 3}}  # a warm node that the next run needs
# Before its first run has ended, or after that.
IDLE_REPEATED = replace(ends_ok(r"\bnode 2\b", "replaced|repeated"), of_next=True)
AGENT, WARM_PARENT = signalled(first("trainer.node node")), signalled(first("trainer.warm"))
# A parent that is killed while it imports torch is started once more, without a word.
REPEATED_UNLESS_EARLY = replace(ends_ok(WARM, "repeated|before"), silent=("ok",))
COORDINATOR_KILLED = strikes.kill_containers("coordinator")
COORDINATOR_SUSPENDED = suspended(with_command("trainer.node coordinator"))
COORDINATOR_REPEATED = ends_ok(COORDINATOR, "repeated", within_s=120)
ONE_FAILS = fails(f"{COORDINATOR}|{NODE}", "SIGKILL|killed")
TERMINATED, CONTAINER = signalled(strikes.init, number=SIGTERM), strikes.kill_containers("node")
MPIRUN_TERMINATED = signalled(first(*MPIRUN), number=SIGTERM)
MPIRUN_SUSPENDED = suspended(with_command(*MPIRUN))
SUSPENDED_MPIRUN, THIRTY_S = times_out(LAUNCHER, "mpirun.*suspended", within_s=40), long(MPI, timeout_s=30)
THROTTLE, THROTTLED = signalled(started("local.throttle")), long(node_speed={-1: 0.5})
limit = partial(docker, fault=Fault(), moment=START)
FULL_EVENTS = strikes.execute_in_nodes("cat /dev/zero >/run/shardyard/full")
data = partial(again, verdict=stops(2, r"train-images-idx3-ubyte\.gz"), run=MNIST, moment=BEFORE)
checkpoint = partial(case, run=RESUMABLE, moment=BEFORE, earlier="killed")
finished = partial(local, verdict=ends_ok(), run=short(epochs=2), moment=BEFORE, earlier="finished")
in_checkpoint = partial(strikes.damaged, strikes.newest_checkpoint)
UNREADABLE = in_checkpoint(lambda path: path.chmod(0))  # as root, local processes read any file
SKIPS, SKIPS_UNREADABLE = ends_ok(VICTIM, "damaged"), ends_ok(VICTIM, "cannot be read")
NO_PROXY = dict.fromkeys(("https_proxy", "HTTPS_PROXY"), "http://127.0.0.1:9")
FULL, FULL_FAILS = strikes.full_disk(lambda scene: scene.out), stops(1, r"/out\b", "disk is full")
FULL_CHECKPOINTS = strikes.full_disk(lambda scene: scene.files.checkpoints)
EVENTS_FAIL = fails(VICTIM, r"rank-\d.jsonl")
NO_SPACE = fails(NODE, "No space left")
END = {number: signalled(orchestrator, number=number) for number in (SIGINT, SIGTERM, SIGHUP, SIGKILL)}
KILLED_TOO = again("orchestrator-sigkill", END[SIGKILL], STOPS, run=RESUMABLE)
slurm = partial(case, runtimes=("slurm",))
requeued = partial(slurm, verdict=ends_ok("requeue 1: ", within_s=240), run=SLOW, moment=CHECKPOINT)
LATE = ends_ok(within_s=120)
ray = partial(case, run=REPEATABLE, runtimes=("ray",))
raylets = partial(ray, environment=LOCAL_RAYLETS)
waiting = partial(ray, moment=Moment.PENDING, options=COLD)
SUSPENDED_ACTOR = suspended(clusters.with_processes(clusters.actor))
DRIVER, HEAD = signalled(first(clusters.DRIVER_COMMAND)), signalled(first(clusters.HEAD_COMMAND))
NO_ROOM = fails("no room for 2 nodes of 8 CPUs, .* 0 of 2 machines")

CASES = [
    # Ranks
    local("kill-at-start", signalled(strikes.starting), fails(VICTIM, "SIGKILL"), moment=START),
    kill("kill-connecting", moment=CONNECTING, **EVERYWHERE),
    kill("kill-first-step", moment=Moment.FIRST_STEP),
    kill("kill-epoch", **EVERYWHERE),
    kill("kill-evaluation", run=EVALUATING),
    kill("kill-checkpoint", run=long(checkpoint_steps=1), moment=CHECKPOINT),
    replace(RESUME, runtimes=("local", "docker", "slurm")),
    case("kill-teardown", KILL, FAILS_OR_LATE, run=WRITING, moment=Moment.TEARDOWN),
    kill("kill-mpi", run=long(MPI), runtimes=("local", "docker", "slurm")),
    kill("kill-mpi-connecting", run=long(MPI), moment=CONNECTING),
    kill("kill-rpc", run=long(RPC), runtimes=("local", "docker")),
    kill("kill-ddp", run=long(strategy="ddp", nodes=3)),
    kill("kill-fsdp", run=long(strategy="fsdp")),
    kill("kill-several-in-node", run=long(processes_per_node=2), runtimes=("local",)),
    kill("kill-server", run=long(SERVER), victims=(0,)),
    kill("kill-worker", run=long(SERVER), victims=(1, 2)),
    kill("kill-async-server", run=long(ASYNC), victims=(0,)),
    kill("kill-async-worker", run=long(ASYNC), victims=(1, 2)),
    kill("kill-stage", run=long(PIPELINE)),
    kill("kill-torch-stage", run=long(PIPELINE, strategy="pipeline_torch"), runtimes=("local",)),
    kill("kill-rpc-master", run=long(SPLIT), victims=(0,)),
    kill("kill-rpc-stage", run=long(SPLIT), victims=(1, 2)),
    kill("kill-hogwild", run=long(HOGWILD)),
    case("kill-hogwild-parent", KILL_PARENT, PARENT_FAILS, run=long(HOGWILD), options=COLD),
    kill("kill-two", run=long(nodes=3), count=2),
    kill("kill-all", run=long(nodes=3), count=3),
    case("terminate", signalled(ranks, number=SIGTERM), fails(VICTIM, "SIGTERM")),
    case("exit", Fault(), EXITS, run=EXIT, moment=CONNECTING, victims=(1,), next_run=OTHER),
    case("restart-rank", KILL, RESTARTS, run=RESTARTED),
    case("restart-at-any-moment", KILL, RESTARTS, run={**SLOW, "restarts": 3}, moment=Moment.ANY),
    kill_again("restart-again", verdict=RESTARTS, run=RESTARTED),
    kill_again("restarts-used-up", verdict=USED_UP, run=NOT_RESTARTED),
    case("restart-agent", AGENT_OF_TORCHRUN, AGENT_FAILS, run={**SLOW, "restarts": 3}),
    # Suspended and unreachable nodes
    SUSPEND,
    replace(SUSPEND, name="suspend-connecting", moment=CONNECTING),
    case("suspend-short", suspended(ranks, 3.0), ends_ok(), run=short()),
    cold("suspend-node", STOP_NODE, STUCK_FAILS),
    docker("pause-short", strikes.pause(5.0), ends_ok(), run=short()),
    cold("pause", strikes.pause(None), FAILS_OR_TIMES_OUT, run=SLOWED),
    cold("cut", strikes.cut(None), fails(VICTIM, within_s=30)),
    docker("cut-idle", strikes.cut(None), IDLE_REPEATED, **IDLE),
    docker("cut-short", strikes.cut(3.0), ends_ok(), run=short()),
    docker("cut-short-connecting", strikes.cut(3.0), ends_ok(), run=short(MPI), moment=CONNECTING),
    # Other processes and containers
    case("warm-parent", WARM_PARENT, ends_ok(WARM, "repeated"), run=short()),
    case("warm-parent-at-start", WARM_PARENT, REPEATED_UNLESS_EARLY, run=short(), moment=START),
    local("warm-client", signalled(first("warm/client.py")), FAILS, count=2),
    case("mpirun", signalled(first(*MPIRUN)), LAUNCHER_FAILS, run=long(MPI)),
    local("mpirun-at-start", signalled(started(*MPIRUN)), LAUNCHER_FAILS, run=long(MPI), moment=START),
    case("mpirun-terminated", MPIRUN_TERMINATED, fails(LAUNCHER, "^mpirun.*SIGTERM"), run=long(MPI)),
    case("mpirun-suspended", MPIRUN_SUSPENDED, SUSPENDED_MPIRUN, run=THIRTY_S, moment=START),
    cold("launcher", strikes.kill_containers("launcher"), fails(LAUNCHER), run=long(MPI)),
    cold("coordinator", COORDINATOR_KILLED, fails(COORDINATOR, KILLED)),
    cold("coordinator-start", COORDINATOR_KILLED, COORDINATOR_FAILS, moment=START),
    cold("coordinator-assignment", COORDINATOR_KILLED, COORDINATOR_FAILS, moment=CONNECTING),
    docker("coordinator-warm", COORDINATOR_KILLED, COORDINATOR_REPEATED, run=short()),
    cold("coordinator-suspended", COORDINATOR_SUSPENDED, COORDINATOR_STUCK),
    docker("coordinator-suspended-warm", COORDINATOR_SUSPENDED, COORDINATOR_REPEATED, run=short()),
    docker("coordinator-continuing", COORDINATOR_SUSPENDED, COORDINATOR_STUCK, run=long(CONTINUING)),
    cold("coordinator-and-node", strikes.kill_containers("coordinator", "node"), ONE_FAILS),
    cold("agent", AGENT, fails(NODE)),
    docker("agent-warm", AGENT, ends_ok(NODE, "repeated"), run=short()),
    docker("container-terminated", TERMINATED, fails(VICTIM, "SIGTERM")),
    cold("container-terminated-cold", TERMINATED, fails(VICTIM, "SIGTERM")),
    # A rank that is not forked yet is lost with its container, so the run is repeated.
    docker("container-terminated-connecting", TERMINATED, FAILS_OR_OK, run=short(), moment=CONNECTING),
    cold("container-at-start", CONTAINER, fails(VICTIM, within_s=30), moment=START),
    cold("container", CONTAINER, FAILS_IN_CONTAINER),
    cold("container-connecting", CONTAINER, FAILS_IN_CONTAINER, moment=CONNECTING),
    replace(RESUME, name="container-checkpoint", fault=CONTAINER, runtimes=("docker",)),
    cold("containers", CONTAINER, FAILS_IN_CONTAINER, run=long(nodes=3), count=2),
    docker("container-warm", CONTAINER, REPEATED, run=short()),
    local("throttle", THROTTLE, fails("throttle", "ended before"), run=THROTTLED),
    cold("compose", signalled(started("compose")), fails("compose", within_s=40), moment=START),
    docker("engine", strikes.ENGINE, stops(2, "engine", within_s=60)),
    # Limits
    limit("memory", verdict=fails(NODE, "256 MiB", within_s=60), run=LIMITED),
    case("allocation", Fault(), fails(NODE, "allocate|memory", within_s=60), run=HUGE, moment=START),
    limit("pids", verdict=fails(NODE, within_s=60), run=long(pids=16, threads=32)),
    limit("shared-memory", verdict=fails("node|process", within_s=60), run=LARGE_MODEL),
    docker("temporary-full", strikes.execute_in_nodes("cat /dev/zero >/tmp/full"), ends_ok(), run=short()),
    docker("events-full", FULL_EVENTS, REPORTS_FULL),
    docker("events-full-mpi", FULL_EVENTS, REPORTS_FULL, run=long(MPI)),
    # Files and disks
    again("results-full", FULL, FULL_FAILS, run=RESUMABLE),
    again("results-removed", strikes.REMOVE_RESULTS, stops(1, r"/out\b", "removed"), run=short()),
    again("checkpoints-full", FULL_CHECKPOINTS, NO_SPACE, run=RESUMABLE, moment=CHECKPOINT),
    data("data-removed", strikes.damaged_data(Path.unlink), environment=NO_PROXY),
    data("data-damaged", strikes.damaged_data(strikes.truncate)),
    data("data-unreadable", strikes.damaged_data(lambda path: path.chmod(0o600)), runtimes=("docker",)),
    checkpoint("checkpoint-damaged", in_checkpoint(strikes.flip), SKIPS),
    checkpoint(
        "checkpoint-foreign", in_checkpoint(strikes.of_another_run), ends_ok(VICTIM, "run is other-")
    ),
    checkpoint("checkpoint-empty", in_checkpoint(lambda path: path.write_bytes(b"")), SKIPS),
    checkpoint("checkpoint-linked", in_checkpoint(strikes.link), ends_ok(VICTIM, "damaged|cannot be read")),
    checkpoint("checkpoint-unreadable", UNREADABLE, SKIPS_UNREADABLE, runtimes=("docker",)),
    finished("result-damaged", strikes.damaged(lambda scene: scene.files.result, strikes.truncate)),
    finished("record-damaged", strikes.damaged(lambda scene: scene.paths.record, strikes.truncate)),
    local("events-damaged", Fault(strikes.damage_events), fails(VICTIM, "damaged")),
    local("events-removed", Fault(lambda scene: strikes.events_of_victim(scene).unlink()), EVENTS_FAIL),
    docker("events-removed", strikes.execute_in_nodes(f"rm {HOME.out}/rank-*.jsonl"), EVENTS_FAIL),
    # The orchestrator
    again("orchestrator-sigint", END[SIGINT], stops(130), run=RESUMABLE, moment=CHECKPOINT),
    again("orchestrator-sigterm", END[SIGTERM], stops(130), run=RESUMABLE, moment=CHECKPOINT),
    again("orchestrator-sighup", END[SIGHUP], stops(130), run=RESUMABLE, moment=CHECKPOINT),
    KILLED_TOO,
    replace(KILLED_TOO, name="orchestrator-at-start", run=short(), moment=START),
    replace(KILLED_TOO, name="orchestrator-at-any-moment", run=REPEATABLE, moment=Moment.ANY),
    replace(KILLED_TOO, name="orchestrator-mpi", run=short(MPI)),
    again("orchestrator-and-rank", signalled(ranks, orchestrator), STOPS, run=RESUMABLE),
    docker("orchestrator-and-reaper", strikes.END_WITH_REAPER, STOPS, run=short(), again=True),
    # Slurm
    slurm("slurmstepd", clusters.SLURMSTEPD, fails(VICTIM, "slurmstepd", within_s=60)),
    slurm("slurmd-restarted", clusters.restarted(clusters.slurmd), LATE, run=short()),
    slurm("slurmctld-restarted", clusters.restarted(clusters.slurmctld), LATE, run=REPEATABLE),
    slurm("munged-restarted", clusters.MUNGED_RESTARTED, LATE, run=REPEATABLE),
    slurm("slurmd", clusters.SLURMD, fails(NODE_FAILURE, within_s=150)),
    slurm("machine", clusters.SLURM_NODE, fails("SIGKILL|node failure", within_s=90)),
    slurm("suspend-node", clusters.SLURM_NODE_SUSPENDED, fails(NODE_FAILURE, within_s=150)),
    slurm("preempted", Fault(clusters.preempt_job), fails("preempted", within_s=60)),
    requeued("machine-requeued", clusters.requeued(clusters.SLURM_NODE)),
    requeued("preempted-requeued", clusters.requeued(Fault(clusters.preempt_job))),
    # Ray
    raylets("suspend-node", SUSPENDED_ACTOR, replace(REPEATED, within_s=180)),
    raylets("driver", DRIVER, ends_ok("Ray's driver", "repeated")),
    # Ray gives up a head after a minute, and the run ends before that.
    raylets("head", HEAD, replace(ends_ok("head of the Ray cluster"), of_next=True), run=short()),
    raylets("orchestrator-sigint", END[SIGINT], stops(130), again=True),
    raylets("orchestrator-sigkill", END[SIGKILL], STOPS, again=True),
    raylets("orchestrator-and-driver", clusters.END_WITH_DRIVER, STOPS, again=True),
    ray("actor", signalled(clusters.actor), REPEATED),
    ray("raylet", clusters.RAYLET, REPEATED_LATE),
    ray("suspend-machine", clusters.RAY_MACHINE_SUSPENDED, REPEATED_LATE),
    ray("preempted", clusters.MACHINE_PREEMPTED, REPEATED_LATE),
    waiting("no-room", Fault(), NO_ROOM, run={**SMALL, **WITHOUT_ROOM}, sweep={"ray": {"wait_s": 5}}),
    waiting("machine-added", clusters.MACHINE_ADDED, ends_ok(), run=short(WITHOUT_ROOM)),
    ray("cluster-orchestrator-sigkill", END[SIGKILL], STOPS, again=True),
]
