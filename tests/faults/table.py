"""All cases, by section of the page. docs/faults.md is written from this table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM
from typing import Any

from tests.faults import ray_strikes as ray
from tests.faults import slurm_strikes as slurm
from tests.faults import strikes
from tests.faults import swarm_strikes as swarm
from tests.faults.case import (
    DOCKER,
    GLOO,
    LOCAL,
    RAY,
    SLURM,
    SWARM,
    TRAINING,
    Case,
    Earlier,
    Fact,
    Moment,
    Then,
    Verdict,
    long,
    short,
)
from tests.faults.strikes import END, KILL, in_the_run, killed, signalled

# Runs; without a name, `long` and `short` train with all_reduce over gloo.

MPI = {"strategy": "all_reduce", "transport": "mpi", "nodes": 2}
RPC = {"strategy": "all_reduce", "transport": "rpc", "nodes": 2}
SERVER = {"strategy": "parameter_server", "transport": "gloo", "nodes": 3}
ASYNC = {"strategy": "async_parameter_server", "transport": "rpc", "nodes": 3}
SPLIT = {"strategy": "rpc_split", "transport": "rpc", "nodes": 3}
PIPELINE = {"strategy": "pipeline", "transport": "gloo", "nodes": 3}
TORCH_PIPELINE = {"strategy": "pipeline_torch", "transport": "gloo", "nodes": 3}
CONTINUING = {"strategy": "local_sgd", "transport": "gloo", "nodes": 3, "on_loss": "continue"}
HOGWILD = {"strategy": "hogwild", "transport": "memory", "nodes": 3}
RESUMABLE = short(checkpoint_epochs=10)
RESTARTED = short(restarts=3, checkpoint_epochs=10)
RESTARTED_LONG = short(restarts=3, checkpoint_epochs=10, epochs=1000)
BRIEF = {**TRAINING, **GLOO, "epochs": 2}
MNIST = {**GLOO, "dataset": "mnist", "model": "mlp", "epochs": 1}
# Nearly all of its time is evaluation.
EVALUATING = long(dataset={"name": "synthetic", "samples": 64, "test_samples": 20_000, "noise": 1.0})
# Writing many weights takes a moment.
WRITING = {**BRIEF, "epochs": 3, "model": {"name": "mlp", "hidden": [8000]}, "save_weights": True}
LIMITED = {**GLOO, "memory_mb": 256, "dataset": {"name": "synthetic", "samples": 200_000}}
HUGE = {"name": "synthetic", "samples": 100, "height": 10**6, "width": 10**6}
LARGE_IMAGES = {**TRAINING, **GLOO, "dataset": HUGE}
LARGE_MODEL = long(HOGWILD, shm_mb=16, model={"name": "mlp", "hidden": [20_000]})
REQUEUEABLE = short(epochs=1000, checkpoint_epochs=10)
# Still trains when Ray has noticed that a machine is lost.
REPEATABLE = short(epochs=2000)
WITHOUT_ROOM = {**GLOO, "cpus": float(ray.LARGE)}


def injected(fault: str, **fields: Any) -> dict[str, Any]:
    """A run in which the strategy fault_injection makes the fault."""
    strategy = {"name": "fault_injection", "fault": fault, "rank": 1, "work_s": 0.3}
    return {"strategy": strategy, "transport": "gloo", "nodes": 2, **fields}


# Facts: who is named

NODE = Fact("the node", "")  # checked against the victims
ANY_NODE = Fact("the node", r"\bnode \d")  # any of those to which it happened
NODE_OR_TORCHRUN = Fact("the node", r"node \d|torchrun")
NODE_OR_PROCESS = Fact("the node", r"node|process")
NODE_2 = Fact("the node", r"container node 2\b")
COORDINATOR = Fact("the coordinator", r"\bcoordinator\b")
COORDINATOR_OR_NODE = Fact("the coordinator or the node", r"coordinator|node \d")
LAUNCHER = Fact("mpirun or the launcher", r"\b(mpirun|launcher)\b")
PARENT = Fact("the process that started the ranks", "process that started all|warm")
WARM = Fact("the warm nodes", r"\bwarm (nodes|container)\b")
THROTTLE = Fact("the throttle", "throttle")
COMPOSE = Fact("docker compose", "compose")
ENGINE = Fact("the Docker engine", "engine")
RESULTS = Fact("the results directory", r"/out\b")
DATA = Fact("the file", r"train-images-idx3-ubyte\.gz")
DRIVER = Fact("Ray's driver", "Ray's driver")
HEAD = Fact("the head, in the next row", "head of the Ray cluster")

# Facts: what is said about it

KILLED = Fact("killed by SIGKILL", "SIGKILL|killed together with its container")
BY_SIGKILL = Fact("killed by SIGKILL", "SIGKILL")
AGENT_KILLED = Fact("killed by SIGKILL", "SIGKILL|killed")
MPIRUN_KILLED = Fact("killed by SIGKILL", "^mpirun.*SIGKILL")
MPIRUN_TERMINATED = Fact("stopped by SIGTERM", "^mpirun.*SIGTERM")
MPIRUN_SUSPENDED = Fact("suspended by a signal", "mpirun.*suspended")
BOTH_KILLED = Fact("killed", "SIGKILL|killed")
WITH_CONTAINER = Fact("killed together with its container", "container")
USED_UP = Fact("killed by SIGKILL, after 1 restart", "after 1 restart")
BY_SIGTERM = Fact("stopped by SIGTERM", "SIGTERM")
FROM_OUTSIDE = Fact("stopped by SIGTERM from outside", "SIGTERM")
SIGTERM_OR_REPEATED = Fact("SIGTERM, or repeated", "SIGTERM|repeated")
SUSPENDED_BY_SIGNAL = Fact("suspended by a signal", "suspended")
STUCK = Fact("is stuck, or silent", "stuck|silent|heartbeat|no answer")
EXCEPTION = Fact("the exception", "InjectedFault")
NO_RESULT = Fact("ended before it reported its result", "exit code 0 before it reported")
LAST_SEEN = Fact("where it was last seen", "last seen")
REPEATED = Fact("the run was repeated", "repeated")
REPEATED_EARLY = Fact("the run was repeated", "repeated|before")
NEXT_REPEATED = Fact("the next run was repeated", "repeated")
ALL_RESTARTED = Fact("lost, and all ranks were restarted", "restarted")
ENDED_BEFORE = Fact("has ended before the run", "ended before")
ITS_LIMIT = Fact("its limit", "256 MiB")
ALLOCATION = Fact("the allocation", "allocate|memory")
RUN_FULL = Fact("the directory is full", "/run/shardyard is full")
DISK_FULL = Fact("the disk is full", "disk is full")
NO_SPACE = Fact("no space left", "No space left")
REMOVED = Fact("it was removed", "removed")
EVENTS_DAMAGED = Fact("its events are damaged", "damaged")
EVENTS_REMOVED = Fact("its events are damaged", r"rank-\d.jsonl")
SLURMSTEPD = Fact("its slurmstepd is gone", "slurmstepd")
NODE_FAILURE = Fact("the failed node", r"lost node yard\d: node failure")
KILLED_OR_FAILURE = Fact("killed, or node failure", "SIGKILL|node failure")
PREEMPTED = Fact("preemption", "preempted")
REQUEUED = Fact("the requeue", "requeue 1: ")
NO_ROOM = Fact("what is missing", "no room for 2 nodes of 8 CPUs, .* 0 of 2 machines")


def skipped(pattern: str) -> Fact:
    return Fact("why it was skipped", pattern)


# Verdicts


def fails(named: Fact | None, cause: Fact | None = None, within_s: float = 15.0) -> Verdict:
    """The run fails, and the sweep goes on."""
    return Verdict(("failed",), named, cause, within_s, Then.GOES_ON, 1)


def times_out(named: Fact, cause: Fact, within_s: float) -> Verdict:
    """The run is stopped at its limit, and the sweep goes on."""
    return replace(fails(named, cause, within_s), status=("timeout",))


def ends_ok(named: Fact | None = None, cause: Fact | None = None, within_s: float = 90.0) -> Verdict:
    """The run ends ok; what has happened is a flag of its row."""
    return Verdict(("ok",), named, cause, within_s, Then.OK, 0)


def stops(code: int, named: Fact | None = None, cause: Fact | None = None, within_s: float = 20) -> Verdict:
    """The sweep stops."""
    return Verdict((), named, cause, within_s, Then.STOPS, code)


def too_late(verdict: Verdict) -> Verdict:
    """Or the run is ok, because the fault came too late."""
    return replace(verdict, status=("failed", "ok"), silent=("ok",))


FAILS = fails(NODE, KILLED)
STOPS = stops(-SIGKILL)
FAILS_OR_OK = replace(fails(ANY_NODE, SIGTERM_OR_REPEATED, 60.0), status=("failed", "ok"))
FAILS_OR_TIMES_OUT = replace(fails(NODE, None, 70.0), status=("failed", "timeout"))

# Cases

START, CONNECTING, CHECKPOINT = Moment.START, Moment.CONNECTING, Moment.CHECKPOINT
local = partial(Case, runtimes=(LOCAL,))
docker = partial(Case, runtimes=(DOCKER,))
cold = partial(Case, runtimes=(DOCKER,), options=("--cold",))
again = partial(Case, again=True)  # the same command resumes


def in_words(case: Case, words: str) -> Case:
    """The case whose fault has other words."""
    return replace(case, fault=replace(case.fault, words=words))


def on(runtime: str, cases: Sequence[Case]) -> list[Case]:
    """Cases of a runtime, whose names start with its name."""
    return [replace(case, name=f"{runtime}-{case.name}", runtimes=(runtime,)) for case in cases]


KILL_CONNECTING = Case("kill-connecting", KILL, FAILS, moment=CONNECTING)
KILL_EPOCH = Case("kill-epoch", KILL, FAILS)
KILL_MPI = Case("kill-mpi", KILL, FAILS, long(MPI))
KILL_RPC = Case("kill-rpc", KILL, FAILS, long(RPC))
RESUME = again("kill-then-resume", KILL, too_late(fails(NODE, KILLED, 30.0)), RESUMABLE, CHECKPOINT)

injecting = partial(Case, moment=Moment.FIRST_STEP, victims=(1,))
KILLED_RANKS = [
    local("kill-at-start", strikes.KILL_STARTING, fails(NODE, BY_SIGKILL), moment=START),
    KILL_CONNECTING,
    Case("kill-first-step", KILL, FAILS, moment=Moment.FIRST_STEP),
    replace(KILL_EPOCH, sample=(LOCAL,)),
    Case("kill-evaluation", KILL, FAILS, EVALUATING, Moment.EVALUATION),
    Case("kill-checkpoint", KILL, FAILS, long(checkpoint_steps=1), CHECKPOINT),
    RESUME,
    Case("kill-teardown", KILL, too_late(FAILS), WRITING, Moment.TEARDOWN),
    replace(KILL_MPI, run=long(MPI, nodes=3)),
    Case("kill-mpi-connecting", KILL, FAILS, long(MPI), CONNECTING),
    KILL_RPC,
    Case("kill-ddp", KILL, FAILS, long(strategy="ddp", nodes=3)),
    Case("kill-fsdp", KILL, FAILS, long(strategy="fsdp")),
    local("kill-several-in-node", killed("one of two ranks in a node"), FAILS, long(processes_per_node=2)),
    *(
        Case(name, killed(what), FAILS, long(run), victims=victims)
        for name, what, run, victims in (
            ("kill-server", "the parameter server", SERVER, (0,)),
            ("kill-worker", "a worker of the parameter server", SERVER, (1, 2)),
            ("kill-async-server", "the asynchronous parameter server", ASYNC, (0,)),
            ("kill-async-worker", "a worker of the asynchronous parameter server", ASYNC, (1, 2)),
        )
    ),
    Case("kill-stage", killed("a pipeline stage"), FAILS, long(PIPELINE)),
    local("kill-torch-stage", killed("a stage of torch's pipeline"), FAILS, long(TORCH_PIPELINE)),
    Case("kill-rpc-master", killed("the RPC master"), FAILS, long(SPLIT), victims=(0,)),
    Case(
        "kill-rpc-stage",
        killed("a node with a part of the RPC master's model"),
        FAILS,
        long(SPLIT),
        victims=(1, 2),
    ),
    Case("kill-hogwild", killed("a rank of hogwild"), FAILS, long(HOGWILD)),
    Case("kill-hogwild-parent", strikes.PARENT, fails(PARENT, KILLED), long(HOGWILD), options=("--cold",)),
    Case("kill-two", strikes.KILL_TWO, FAILS, long(nodes=3), count=2),
    Case("kill-all", strikes.KILL_ALL, FAILS, long(nodes=3), count=3),
    Case("terminate", strikes.TERMINATE, fails(NODE, FROM_OUTSIDE)),
    injecting("crash", in_the_run("a rank raises an exception"), fails(NODE, EXCEPTION), injected("crash")),
    injecting(
        "exit",
        in_the_run("a rank ends with exit code 0 before it reports"),
        fails(NODE, NO_RESULT),
        injected("exit"),
        moment=CONNECTING,
    ),
    injecting(
        "stall",
        in_the_run("a rank computes forever"),
        times_out(NODE, LAST_SEEN, 40.0),
        injected("stall", timeout_s=30.0),
    ),
]

SUSPEND = Case("suspend", strikes.SUSPEND, times_out(NODE, SUSPENDED_BY_SIGNAL, 70.0), long(timeout_s=60.0))
SUSPENDED = [
    Case("suspend-short", strikes.SUSPEND_SHORT, ends_ok(), short()),
    SUSPEND,
    replace(SUSPEND, name="suspend-connecting", moment=CONNECTING),
    cold("suspend-node", strikes.SUSPEND_NODE, fails(NODE, STUCK, 60.0)),
    docker("pause-short", strikes.PAUSE_SHORT, ends_ok(), short()),
    cold("pause", strikes.PAUSE, FAILS_OR_TIMES_OUT, long(timeout_s=60.0)),
    cold("cut", strikes.CUT, fails(NODE, None, 30.0)),
    docker(
        "cut-idle",
        strikes.CUT_IDLE,
        replace(ends_ok(NODE_2, NEXT_REPEATED), of_next=True),
        short(),
        victims=(2,),
        next_run={"nodes": 3},
    ),
    docker("cut-short", strikes.CUT_SHORT, ends_ok(), short()),
    docker("cut-short-connecting", strikes.CUT_SHORT, ends_ok(), short(MPI), CONNECTING),
]

RESTARTS = [
    Case("restart-rank", KILL, ends_ok(NODE, ALL_RESTARTED), RESTARTED),
    Case(
        "restart-again",
        strikes.kill_again,
        ends_ok(NODE, ALL_RESTARTED),
        RESTARTED,
        Moment.RESTART,
        count=2,
    ),
    Case(
        "restarts-used-up",
        replace(strikes.kill_again, words="more ranks get SIGKILL than restarts are allowed"),
        fails(NODE, USED_UP, 40.0),
        {**RESTARTED_LONG, "restarts": 1},
        Moment.RESTART,
        count=2,
    ),
    Case("restart-agent", strikes.TORCHRUN, fails(NODE_OR_TORCHRUN, AGENT_KILLED, 40.0), RESTARTED_LONG),
]

AGENT = Case("agent", strikes.AGENT, fails(ANY_NODE))
PROCESSES = [
    Case("warm-parent", strikes.WARM_PARENT, ends_ok(WARM, REPEATED), short()),
    Case("warm-parent-at-start", strikes.WARM_PARENT, ends_ok(WARM, REPEATED_EARLY), short(), START),
    local("warm-client", strikes.WARM_CLIENT, FAILS, victims=(0, 1), count=2),
    Case("mpirun", strikes.MPIRUN_KILLED, fails(LAUNCHER, MPIRUN_KILLED), long(MPI)),
    Case("mpirun-terminated", strikes.MPIRUN_TERMINATED, fails(LAUNCHER, MPIRUN_TERMINATED), long(MPI)),
    Case(
        "mpirun-suspended",
        strikes.MPIRUN_SUSPENDED,
        times_out(LAUNCHER, MPIRUN_SUSPENDED, 40.0),
        long(MPI, timeout_s=30.0),
        START,
    ),
    local("mpirun-at-start", strikes.MPIRUN_AT_START, fails(LAUNCHER, MPIRUN_KILLED), long(MPI), START),
    cold("launcher", strikes.LAUNCHER, fails(LAUNCHER), long(MPI)),
    cold("coordinator", strikes.COORDINATOR, fails(COORDINATOR, KILLED)),
    in_words(
        docker("coordinator-warm", strikes.COORDINATOR, ends_ok(COORDINATOR, REPEATED), short()),
        "the coordinator's warm container is killed",
    ),
    cold("coordinator-suspended", strikes.COORDINATOR_SUSPENDED, fails(COORDINATOR, STUCK, 45.0)),
    docker(
        "coordinator-suspended-warm",
        strikes.COORDINATOR_SUSPENDED,
        ends_ok(COORDINATOR, REPEATED, 120.0),
        short(),
    ),
    docker(
        "coordinator-suspended-continuing",
        strikes.COORDINATOR_SUSPENDED,
        fails(COORDINATOR, STUCK, 45.0),
        long(CONTINUING),
    ),
    cold("coordinator-start", strikes.COORDINATOR, fails(COORDINATOR, None, 30.0), moment=START),
    cold("coordinator-assignment", strikes.COORDINATOR, fails(COORDINATOR, None, 30.0), moment=CONNECTING),
    cold("coordinator-and-node", strikes.COORDINATOR_AND_NODE, fails(COORDINATOR_OR_NODE, BOTH_KILLED)),
    replace(AGENT, runtimes=(DOCKER,), options=("--cold",)),
    in_words(
        docker("agent-warm", strikes.AGENT, ends_ok(ANY_NODE, REPEATED), short()),
        "a warm node's agent gets SIGKILL",
    ),
    docker("container-terminated", strikes.TERMINATED, fails(NODE, BY_SIGTERM)),
    cold("container-terminated-cold", strikes.TERMINATED, fails(NODE, BY_SIGTERM)),
    # A rank that is not forked yet is lost with its container, so the run is repeated.
    docker("container-terminated-connecting", strikes.TERMINATED, FAILS_OR_OK, short(), CONNECTING),
    cold("container-at-start", strikes.CONTAINER, fails(NODE, None, 30.0), moment=START),
    cold("container", strikes.CONTAINER, fails(NODE, WITH_CONTAINER)),
    cold("container-connecting", strikes.CONTAINER, fails(NODE, WITH_CONTAINER), moment=CONNECTING),
    replace(RESUME, name="container-checkpoint", fault=strikes.CONTAINER, runtimes=(DOCKER,)),
    in_words(
        cold("containers", strikes.CONTAINER, fails(NODE, WITH_CONTAINER), long(nodes=3), count=2),
        "two nodes' containers are killed at once",
    ),
    in_words(
        docker("container-warm", strikes.CONTAINER, ends_ok(NODE, REPEATED), short()),
        "a warm node's container is killed",
    ),
    local("throttle", strikes.THROTTLE, fails(THROTTLE, ENDED_BEFORE), long(node_speed={-1: 0.5})),
    cold("compose", strikes.COMPOSE, fails(COMPOSE, None, 40.0), moment=START),
    docker("engine", strikes.ENGINE, stops(2, ENGINE, None, 60.0)),
]

in_docker = partial(docker, moment=START)
LIMITS = [
    in_docker(
        "memory",
        in_the_run("a node needs more memory than its limit"),
        fails(ANY_NODE, ITS_LIMIT, 60.0),
        LIMITED,
    ),
    Case(
        "allocation",
        in_the_run("a node asks for more memory than there is"),
        fails(ANY_NODE, ALLOCATION, 60.0),
        LARGE_IMAGES,
        START,
    ),
    in_docker(
        "pids",
        in_the_run("a node starts more processes and threads than its limit"),
        fails(ANY_NODE, None, 60.0),
        long(pids=16, threads=32),
    ),
    in_docker(
        "shared-memory",
        in_the_run("a node's /dev/shm is too small for the model"),
        fails(NODE_OR_PROCESS, None, 60.0),
        LARGE_MODEL,
    ),
    docker("temporary-full", strikes.FULL_TMP, ends_ok(), short()),
    docker("events-full", strikes.FULL_EVENTS, fails(NODE, RUN_FULL, 30.0)),
    docker("events-full-mpi", strikes.FULL_EVENTS, fails(NODE, RUN_FULL, 30.0), long(MPI)),
]

data = partial(again, verdict=stops(2, DATA), run=MNIST, moment=Moment.BEFORE)
checkpoint = partial(Case, run=RESUMABLE, moment=Moment.BEFORE, earlier=Earlier.KILLED)
finished = partial(local, verdict=ends_ok(), run=BRIEF, moment=Moment.BEFORE, earlier=Earlier.FINISHED)
NO_PROXY = dict.fromkeys(("https_proxy", "HTTPS_PROXY"), "http://127.0.0.1:9")
FILES = [
    again("results-full", strikes.FULL_RESULTS, stops(1, RESULTS, DISK_FULL), RESUMABLE),
    again("results-removed", strikes.remove_results, stops(1, RESULTS, REMOVED), short()),
    again("checkpoints-full", strikes.FULL_CHECKPOINTS, fails(ANY_NODE, NO_SPACE), RESUMABLE, CHECKPOINT),
    data("data-removed", strikes.DATA_REMOVED, environment=NO_PROXY),
    data("data-damaged", strikes.DATA_DAMAGED),
    data("data-unreadable", strikes.DATA_UNREADABLE, runtimes=(DOCKER,)),
    checkpoint("checkpoint-damaged", strikes.CHECKPOINT_DAMAGED, ends_ok(NODE, skipped("damaged"))),
    checkpoint("checkpoint-foreign", strikes.CHECKPOINT_FOREIGN, ends_ok(NODE, skipped("run is other-"))),
    checkpoint("checkpoint-empty", strikes.CHECKPOINT_EMPTY, ends_ok(NODE, skipped("damaged"))),
    checkpoint(
        "checkpoint-linked", strikes.CHECKPOINT_LINKED, ends_ok(NODE, skipped("damaged|cannot be read"))
    ),
    checkpoint(
        "checkpoint-unreadable",
        strikes.CHECKPOINT_UNREADABLE,
        ends_ok(NODE, skipped("cannot be read")),
        runtimes=(DOCKER,),  # as root, local processes read any file
    ),
    finished("result-damaged", strikes.damaged_result),
    finished("record-damaged", strikes.damaged_record),
    local("events-damaged", strikes.damage_events, fails(NODE, EVENTS_DAMAGED), sample=(LOCAL,)),
    Case("events-removed", strikes.remove_events, fails(NODE, EVENTS_REMOVED)),
]

END_WITH_REAPER = again(
    "orchestrator-and-reaper", strikes.END_WITH_REAPER, STOPS, short(), runtimes=(DOCKER,)
)
INTERRUPTED = again("orchestrator-sigint", END[SIGINT], stops(130), RESUMABLE, CHECKPOINT, sample=(LOCAL,))
CLOSED = signalled(SIGHUP, strikes.orchestrator, "the orchestrator gets SIGHUP (the terminal is closed)")
ORCHESTRATOR = [
    in_words(INTERRUPTED, "the orchestrator gets SIGINT (Ctrl-C)"),
    again("orchestrator-sigterm", END[SIGTERM], stops(130), RESUMABLE, CHECKPOINT),
    again("orchestrator-sighup", CLOSED, stops(130), RESUMABLE, CHECKPOINT),
    again("orchestrator-sigkill", END[SIGKILL], STOPS, RESUMABLE),
    again("orchestrator-at-start", END[SIGKILL], STOPS, short(), START),
    again("orchestrator-mpi", END[SIGKILL], STOPS, short(MPI)),
    again("orchestrator-and-rank", strikes.END_WITH_RANK, STOPS, RESUMABLE),
    END_WITH_REAPER,
]

ON_SLURM = [
    KILL_CONNECTING,
    KILL_EPOCH,
    KILL_MPI,
    RESUME,
    Case("slurmstepd", slurm.SLURMSTEPD, fails(NODE, SLURMSTEPD, 60.0)),
    Case("slurmd-restarted", slurm.SLURMD_RESTARTED, ends_ok(within_s=120.0), short()),
    Case("slurmctld-restarted", slurm.SLURMCTLD_RESTARTED, ends_ok(within_s=120.0), short(epochs=2000)),
    Case("munged-restarted", slurm.MUNGED_RESTARTED, ends_ok(within_s=120.0), short(epochs=2000)),
    Case("slurmd", slurm.SLURMD, fails(None, NODE_FAILURE, 150.0)),
    Case("machine", slurm.MACHINE, fails(None, KILLED_OR_FAILURE, 90.0)),
    Case("suspend-node", slurm.NODE_SUSPENDED, fails(None, NODE_FAILURE, 150.0)),
    Case(
        "machine-requeued", slurm.MACHINE_REQUEUED, ends_ok(None, REQUEUED, 240.0), REQUEUEABLE, CHECKPOINT
    ),
    Case("preempted", slurm.PREEMPTED, fails(None, PREEMPTED, 60.0)),
    Case(
        "preempted-requeued",
        slurm.PREEMPTED_REQUEUED,
        ends_ok(None, REQUEUED, 240.0),
        REQUEUEABLE,
        CHECKPOINT,
    ),
]

elsewhere = partial(Case, sweep=swarm.ELSEWHERE)
ON_SWARM = [
    KILL_CONNECTING,
    KILL_EPOCH,
    KILL_MPI,
    KILL_RPC,
    AGENT,
    Case("container-at-start", swarm.CONTAINER, fails(NODE, None, 30.0), moment=START),
    Case("container", swarm.CONTAINER, FAILS),
    Case("coordinator", swarm.COORDINATOR, fails(COORDINATOR, KILLED)),
    Case("suspend-node", swarm.SUSPEND_NODES, fails(NODE, STUCK, 60.0)),
    elsewhere("machine", swarm.lose, fails(NODE, None, 60.0)),
    elsewhere("cut", swarm.CUT, fails(NODE, None, 60.0)),
    elsewhere("cut-short", swarm.CUT_SHORT, ends_ok(), short()),
    elsewhere("manager", swarm.lose_manager, stops(2, ENGINE, None, 60.0), short(), again=True),
    again("orchestrator-sigint", END[SIGINT], stops(130), short()),
    again("orchestrator-sigkill", END[SIGKILL], STOPS, short()),
    END_WITH_REAPER,
]

repeatable = partial(Case, run=REPEATABLE)
raylets = partial(Case, run=REPEATABLE, environment=ray.LOCAL_RAYLETS)
waiting = partial(Case, moment=Moment.PENDING, options=("--cold",))
ON_RAY = [
    replace(KILL_CONNECTING, environment=ray.LOCAL_RAYLETS),
    replace(KILL_EPOCH, environment=ray.LOCAL_RAYLETS),
    raylets("suspend-node", ray.ACTOR_SUSPENDED, ends_ok(NODE, REPEATED, 180.0)),
    raylets("driver", ray.DRIVER, ends_ok(DRIVER, REPEATED)),
    raylets("head", ray.HEAD, replace(ends_ok(HEAD), of_next=True)),
    raylets("orchestrator-sigint", END[SIGINT], stops(130), again=True),
    raylets("orchestrator-sigkill", END[SIGKILL], STOPS, again=True),
    raylets("orchestrator-and-driver", ray.end_with_driver, STOPS, again=True),
    repeatable("actor", ray.ACTOR, ends_ok(NODE, REPEATED)),
    repeatable("raylet", ray.RAYLET, ends_ok(NODE, REPEATED, 150.0)),
    repeatable("suspend-machine", ray.MACHINE_SUSPENDED, ends_ok(NODE, REPEATED, 150.0)),
    repeatable("preempted", ray.preempt, ends_ok(NODE, REPEATED, 150.0)),
    waiting(
        "no-room",
        in_the_run("no machine has the CPUs of a node"),
        fails(None, NO_ROOM),
        {**TRAINING, **WITHOUT_ROOM},
        sweep={"ray": {"wait_s": 5}},
    ),
    waiting("machine-added", ray.add_machine, ends_ok(), short(WITHOUT_ROOM)),
    repeatable("cluster-orchestrator-sigkill", END[SIGKILL], STOPS, again=True),
]

SECTIONS: dict[str, Sequence[Case]] = {
    "Ranks": KILLED_RANKS,
    "Suspended and unreachable nodes": SUSPENDED,
    "Restarts": RESTARTS,
    "Other processes and containers": PROCESSES,
    "Limits": LIMITS,
    "Files and disks": FILES,
    "The orchestrator": ORCHESTRATOR,
    "Slurm": on(SLURM, ON_SLURM),
    "Docker Swarm": on(SWARM, ON_SWARM),
    "Ray": on(RAY, ON_RAY),
}
CASES: tuple[Case, ...] = tuple(case for cases in SECTIONS.values() for case in cases)
