"""All cases, by section of the page. docs/faults.md is written from this table."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.faults import ray_strikes, slurm_strikes, strikes, swarm_strikes
from tests.faults.case import (
    DOCKER,
    LOCAL,
    RAY,
    SLURM,
    SWARM,
    Case,
    Earlier,
    Fact,
    Fault,
    Moment,
    Then,
    Verdict,
)
from tests.support.places import MPIRUN

# Runs

TRAINING: dict[str, Any] = {
    "dataset": {"name": "synthetic", "samples": 240, "test_samples": 64, "noise": 1.0},
    "model": {"name": "mlp", "hidden": [16]},
    "lr": 0.1,
    "timeout_s": 120,
}
# Lasts longer than any case.
LONG = {**TRAINING, "epochs": 10_000}
# Ends in seconds, so that it can be resumed.
SHORT = {**TRAINING, "epochs": 300}
GLOO = {"strategy": "all_reduce", "transport": "gloo", "nodes": 2}
MPI = {"strategy": "all_reduce", "transport": "mpi", "nodes": 2}
RPC = {"strategy": "all_reduce", "transport": "rpc", "nodes": 2}
SERVER = {"strategy": "parameter_server", "transport": "gloo", "nodes": 3}
ASYNC = {"strategy": "async_parameter_server", "transport": "rpc", "nodes": 3}
SPLIT = {"strategy": "rpc_split", "transport": "rpc", "nodes": 3}
PIPELINE = {"strategy": "pipeline", "transport": "gloo", "nodes": 3}
TORCH_PIPELINE = {"strategy": "pipeline_torch", "transport": "gloo", "nodes": 3}
CONTINUING = {"strategy": "local_sgd", "transport": "gloo", "nodes": 3, "on_loss": "continue"}
HOGWILD = {"strategy": "hogwild", "transport": "memory", "nodes": 3}
# Nearly all of its time is evaluation.
EVALUATING = {
    **LONG,
    **GLOO,
    "dataset": {"name": "synthetic", "samples": 64, "test_samples": 20_000, "noise": 1.0},
}
# Nearly all of its time is checkpoints.
CHECKPOINTING = {**LONG, **GLOO, "checkpoint_steps": 1}
RESUMABLE = {**SHORT, **GLOO, "checkpoint_epochs": 10}
RESTARTED = {**SHORT, **GLOO, "restarts": 3, "checkpoint_epochs": 10}

# Facts

NODE = Fact("the node", "")  # checked against the victims
ANY_NODE = Fact("the node", r"\bnode \d")  # any of those to which it happened
KILLED = Fact("killed by SIGKILL", "SIGKILL|killed together with its container")
STUCK = Fact("is stuck, or silent", "stuck|silent|heartbeat|no answer")
COORDINATOR = Fact("the coordinator", r"\bcoordinator\b")
LAUNCHER = Fact("mpirun or the launcher", r"\b(mpirun|launcher)\b")
WARM = Fact("the warm nodes", r"\bwarm (nodes|container)\b")
RESULTS = Fact("the results directory", r"/out\b")
DATA = Fact("the file", r"train-images-idx3-ubyte\.gz")

# Verdicts


def fails(cause: Fact | None, within_s: float = 15.0, named: Fact | None = NODE) -> Verdict:
    """The run fails, and the sweep goes on."""
    return Verdict(("failed",), named, cause, within_s, Then.GOES_ON, 1)


def ends_ok(within_s: float = 90.0, named: Fact | None = None, cause: Fact | None = None) -> Verdict:
    """The run ends ok; what has happened is a flag of its row."""
    return Verdict(("ok",), named, cause, within_s, Then.OK, 0)


def stops(named: Fact | None, cause: Fact | None, code: int, within_s: float = 20.0) -> Verdict:
    """The sweep stops."""
    return Verdict((), named, cause, within_s, Then.STOPS, code)


# Faults


def kill(what: str) -> Fault:
    return strikes.signal_ranks(signal.SIGKILL, f"{what} gets SIGKILL")


KILL = kill("a rank")
SUSPEND = strikes.signal_ranks(signal.SIGSTOP, "a rank is suspended (SIGSTOP)")
SUSPENDED_COORDINATOR = strikes.suspend_process(
    "the coordinator is suspended", "trainer.cluster coordinator"
)
INJECTED = Fault("", strikes.nothing)


def injected(fault: str, words: str) -> tuple[Fault, Mapping[str, Any]]:
    """A fault of the strategy fault_injection, and its run."""
    strategy = {"name": "fault_injection", "fault": fault, "rank": 1, "work_s": 0.3}
    return replace(INJECTED, words=words), {"strategy": strategy, "transport": "gloo", "nodes": 2}


EXIT, EXITING = injected("exit", "a rank ends with exit code 0 before it reports")
CRASH, CRASHING = injected("crash", "a rank raises an exception")
STALL, STALLING = injected("stall", "a rank computes forever")

KILLED_RANKS = (
    Case(
        "kill-at-start",
        Fault("a rank gets SIGKILL", strikes.kill_starting_rank),
        Moment.START,
        {**LONG, **GLOO},
        fails(Fact("killed by SIGKILL", "SIGKILL")),
        (LOCAL,),
    ),
    Case("kill-connecting", KILL, Moment.ASSIGNMENT, {**LONG, **GLOO}, fails(KILLED)),
    Case("kill-first-step", KILL, Moment.FIRST_STEP, {**LONG, **GLOO}, fails(KILLED)),
    Case("kill-epoch", KILL, Moment.EPOCH, {**LONG, **GLOO}, fails(KILLED), sample=(LOCAL,)),
    Case("kill-evaluation", KILL, Moment.EVALUATION, EVALUATING, fails(KILLED)),
    Case("kill-checkpoint", KILL, Moment.CHECKPOINT, CHECKPOINTING, fails(KILLED)),
    Case(
        "kill-then-resume",
        KILL,
        Moment.CHECKPOINT,
        RESUMABLE,
        Verdict(("failed", "ok"), NODE, KILLED, 30.0, Then.GOES_ON, 1, silent=("ok",)),
        again=True,
    ),
    Case(
        "kill-teardown",
        KILL,
        Moment.TEARDOWN,
        # Writing many weights takes a moment.
        {**TRAINING, **GLOO, "epochs": 3, "model": {"name": "mlp", "hidden": [8000]}, "save_weights": True},
        Verdict(("failed", "ok"), NODE, KILLED, 15.0, Then.GOES_ON, 1, silent=("ok",)),
    ),
    Case("kill-mpi", KILL, Moment.EPOCH, {**LONG, **MPI, "nodes": 3}, fails(KILLED)),
    Case("kill-mpi-connecting", KILL, Moment.ASSIGNMENT, {**LONG, **MPI}, fails(KILLED)),
    Case("kill-rpc", KILL, Moment.EPOCH, {**LONG, **RPC}, fails(KILLED)),
    Case("kill-ddp", KILL, Moment.EPOCH, {**LONG, **GLOO, "strategy": "ddp", "nodes": 3}, fails(KILLED)),
    Case("kill-fsdp", KILL, Moment.EPOCH, {**LONG, **GLOO, "strategy": "fsdp"}, fails(KILLED)),
    Case(
        "kill-several-in-node",
        kill("one of two ranks in a node"),
        Moment.EPOCH,
        {**LONG, **GLOO, "processes_per_node": 2},
        fails(KILLED),
        (LOCAL,),
    ),
    Case(
        "kill-server",
        kill("the parameter server"),
        Moment.EPOCH,
        {**LONG, **SERVER},
        fails(KILLED),
        victims=(0,),
    ),
    Case(
        "kill-worker",
        kill("a worker of the parameter server"),
        Moment.EPOCH,
        {**LONG, **SERVER},
        fails(KILLED),
        victims=(1, 2),
    ),
    Case(
        "kill-async-server",
        kill("the asynchronous parameter server"),
        Moment.EPOCH,
        {**LONG, **ASYNC},
        fails(KILLED),
        victims=(0,),
    ),
    Case(
        "kill-async-worker",
        kill("a worker of the asynchronous parameter server"),
        Moment.EPOCH,
        {**LONG, **ASYNC},
        fails(KILLED),
        victims=(1, 2),
    ),
    Case("kill-stage", kill("a pipeline stage"), Moment.EPOCH, {**LONG, **PIPELINE}, fails(KILLED)),
    Case(
        "kill-torch-stage",
        kill("a stage of torch's pipeline"),
        Moment.EPOCH,
        {**LONG, **TORCH_PIPELINE},
        fails(KILLED),
        (LOCAL,),
    ),
    Case(
        "kill-rpc-master",
        kill("the RPC master"),
        Moment.EPOCH,
        {**LONG, **SPLIT},
        fails(KILLED),
        victims=(0,),
    ),
    Case(
        "kill-rpc-stage",
        kill("a node with a part of the RPC master's model"),
        Moment.EPOCH,
        {**LONG, **SPLIT},
        fails(KILLED),
        victims=(1, 2),
    ),
    Case("kill-hogwild", kill("a rank of hogwild"), Moment.EPOCH, {**LONG, **HOGWILD}, fails(KILLED)),
    Case(
        "kill-hogwild-parent",
        Fault("the parent of hogwild's ranks gets SIGKILL", strikes.kill_parent_of_ranks),
        Moment.EPOCH,
        {**LONG, **HOGWILD},
        fails(KILLED, named=Fact("the process that started the ranks", "process that started all|warm")),
        options=("--cold",),
    ),
    Case(
        "kill-two",
        strikes.signal_ranks(signal.SIGKILL, "two ranks get SIGKILL at once"),
        Moment.EPOCH,
        {**LONG, **GLOO, "nodes": 3},
        fails(KILLED),
        count=2,
    ),
    Case(
        "kill-all",
        strikes.signal_ranks(signal.SIGKILL, "all ranks get SIGKILL at once"),
        Moment.EPOCH,
        {**LONG, **GLOO, "nodes": 3},
        fails(KILLED),
        count=3,
    ),
    Case(
        "terminate",
        strikes.signal_ranks(signal.SIGTERM, "a rank gets SIGTERM from another program"),
        Moment.EPOCH,
        {**LONG, **GLOO},
        fails(Fact("stopped by SIGTERM from outside", "SIGTERM")),
    ),
    Case(
        "crash",
        CRASH,
        Moment.FIRST_STEP,
        CRASHING,
        fails(Fact("the exception", "InjectedFault")),
        victims=(1,),
    ),
    Case(
        "exit",
        EXIT,
        Moment.ASSIGNMENT,
        EXITING,
        fails(Fact("ended before it reported its result", "exit code 0 before it reported")),
        victims=(1,),
    ),
    Case(
        "stall",
        STALL,
        Moment.FIRST_STEP,
        {**STALLING, "timeout_s": 30.0},
        Verdict(("timeout",), NODE, Fact("where it was last seen", "last seen"), 40.0, Then.GOES_ON, 1),
        victims=(1,),
    ),
)

SUSPENDED = (
    Case(
        "suspend-short",
        Fault("a rank is suspended for 3 s", strikes.suspend_for(3.0)),
        Moment.EPOCH,
        {**SHORT, **GLOO},
        ends_ok(),
    ),
    Case(
        "suspend",
        SUSPEND,
        Moment.EPOCH,
        {**LONG, **GLOO, "timeout_s": 60.0},
        Verdict(("timeout",), NODE, Fact("suspended by a signal", "suspended"), 70.0, Then.GOES_ON, 1),
    ),
    Case(
        "suspend-connecting",
        SUSPEND,
        Moment.ASSIGNMENT,
        {**LONG, **GLOO, "timeout_s": 60.0},
        Verdict(("timeout",), NODE, Fact("suspended by a signal", "suspended"), 70.0, Then.GOES_ON, 1),
    ),
    Case(
        "suspend-node",
        Fault("all processes of a node are suspended", strikes.suspend_container),
        Moment.EPOCH,
        {**LONG, **GLOO},
        fails(STUCK, 60.0),
        (DOCKER,),
        options=("--cold",),
    ),
    Case(
        "pause-short",
        Fault("a container is paused for 5 s", strikes.pause(5.0)),
        Moment.EPOCH,
        {**SHORT, **GLOO},
        ends_ok(),
        (DOCKER,),
    ),
    Case(
        "pause",
        Fault("a container is paused", strikes.pause(None)),
        Moment.EPOCH,
        {**LONG, **GLOO, "timeout_s": 60.0},
        Verdict(("failed", "timeout"), NODE, None, 70.0, Then.GOES_ON, 1),
        (DOCKER,),
        options=("--cold",),
    ),
    Case(
        "cut",
        Fault("a node is cut off from the network", strikes.cut(None), needs_root=True),
        Moment.EPOCH,
        {**LONG, **GLOO},
        fails(None, 30.0),
        (DOCKER,),
        options=("--cold",),
    ),
    Case(
        "cut-idle",
        Fault("a warm node without a rank is cut off", strikes.cut(None), needs_root=True),
        Moment.EPOCH,
        {**SHORT, **GLOO},
        replace(
            ends_ok(
                named=Fact("the node", r"container node 2\b"),
                cause=Fact("the next run was repeated", "repeated"),
            ),
            of_next=True,
        ),
        (DOCKER,),
        victims=(2,),
        next_run={"nodes": 3},
    ),
    Case(
        "cut-short",
        Fault("a node is cut off for 3 s", strikes.cut(3.0), needs_root=True),
        Moment.EPOCH,
        {**SHORT, **GLOO},
        ends_ok(),
        (DOCKER,),
    ),
    Case(
        "cut-short-connecting",
        Fault("a node is cut off for 3 s", strikes.cut(3.0), needs_root=True),
        Moment.ASSIGNMENT,
        {**SHORT, **MPI},
        ends_ok(),
        (DOCKER,),
    ),
)

RESTARTS = (
    Case(
        "restart-rank",
        KILL,
        Moment.EPOCH,
        RESTARTED,
        ends_ok(named=NODE, cause=Fact("lost, and all ranks were restarted", "restarted")),
    ),
    Case(
        "restart-again",
        Fault("a rank gets SIGKILL, and another one during the restart", strikes.kill_again),
        Moment.RESTART,
        RESTARTED,
        ends_ok(named=NODE, cause=Fact("lost, and all ranks were restarted", "restarted")),
        count=2,
    ),
    Case(
        "restarts-used-up",
        Fault("more ranks get SIGKILL than restarts are allowed", strikes.kill_again),
        Moment.RESTART,
        {**RESTARTED, "epochs": 1000, "restarts": 1},
        fails(Fact("killed by SIGKILL, after 1 restart", "after 1 restart"), 40.0),
        count=2,
    ),
    Case(
        "restart-agent",
        strikes.kill_process("a torchrun agent gets SIGKILL", "trainer.torchrun_restarts"),
        Moment.EPOCH,
        {**RESTARTED, "epochs": 1000},
        fails(
            Fact("killed by SIGKILL", "SIGKILL|killed"),
            40.0,
            named=Fact("the node", r"node \d|torchrun"),
        ),
    ),
)

PROCESSES = (
    Case(
        "warm-parent",
        strikes.kill_process("a warm parent gets SIGKILL", "trainer.warm"),
        Moment.EPOCH,
        {**SHORT, **GLOO},
        ends_ok(named=WARM, cause=Fact("the run was repeated", "repeated")),
    ),
    Case(
        "warm-parent-at-start",
        strikes.kill_process("a warm parent gets SIGKILL", "trainer.warm"),
        Moment.START,
        {**SHORT, **GLOO},
        ends_ok(named=WARM, cause=Fact("the run was repeated", "repeated|before")),
    ),
    Case(
        "warm-client",
        strikes.kill_process("the client of a warm parent gets SIGKILL", "warm/client.py"),
        Moment.EPOCH,
        {**LONG, **GLOO},
        fails(KILLED),
        (LOCAL,),
        victims=(0, 1),
        count=2,
    ),
    Case(
        "mpirun",
        strikes.kill_process("mpirun gets SIGKILL", *MPIRUN),
        Moment.EPOCH,
        {**LONG, **MPI},
        fails(Fact("killed by SIGKILL", "^mpirun.*SIGKILL"), named=LAUNCHER),
    ),
    Case(
        "mpirun-terminated",
        strikes.kill_process("mpirun gets SIGTERM", *MPIRUN, number=signal.SIGTERM),
        Moment.EPOCH,
        {**LONG, **MPI},
        fails(Fact("stopped by SIGTERM", "^mpirun.*SIGTERM"), named=LAUNCHER),
    ),
    Case(
        "mpirun-suspended",
        strikes.suspend_process("mpirun is suspended", *MPIRUN),
        Moment.START,
        {**LONG, **MPI, "timeout_s": 30.0},
        Verdict(
            ("timeout",),
            LAUNCHER,
            Fact("suspended by a signal", "mpirun.*suspended"),
            40.0,
            Then.GOES_ON,
            1,
        ),
    ),
    Case(
        "mpirun-at-start",
        strikes.kill_command("mpirun gets SIGKILL", *MPIRUN),
        Moment.START,
        {**LONG, **MPI},
        fails(Fact("killed by SIGKILL", "^mpirun.*SIGKILL"), named=LAUNCHER),
        (LOCAL,),
    ),
    Case(
        "launcher",
        Fault("the launcher's container is killed", strikes.kill_containers("launcher")),
        Moment.EPOCH,
        {**LONG, **MPI},
        fails(None, named=LAUNCHER),
        (DOCKER,),
        options=("--cold",),
    ),
    Case(
        "coordinator",
        Fault("the coordinator's container is killed", strikes.kill_containers("coordinator")),
        Moment.EPOCH,
        {**LONG, **GLOO},
        fails(KILLED, named=COORDINATOR),
        (DOCKER,),
        options=("--cold",),
    ),
    Case(
        "coordinator-warm",
        Fault("the coordinator's warm container is killed", strikes.kill_containers("coordinator")),
        Moment.EPOCH,
        {**SHORT, **GLOO},
        ends_ok(named=COORDINATOR, cause=Fact("the run was repeated", "repeated")),
        (DOCKER,),
    ),
    Case(
        "coordinator-suspended",
        SUSPENDED_COORDINATOR,
        Moment.EPOCH,
        {**LONG, **GLOO},
        fails(STUCK, 45.0, COORDINATOR),
        (DOCKER,),
        options=("--cold",),
    ),
    Case(
        "coordinator-suspended-warm",
        SUSPENDED_COORDINATOR,
        Moment.EPOCH,
        {**SHORT, **GLOO},
        ends_ok(120.0, COORDINATOR, Fact("the run was repeated", "repeated")),
        (DOCKER,),
    ),
    Case(
        "coordinator-suspended-continuing",
        SUSPENDED_COORDINATOR,
        Moment.EPOCH,
        {**LONG, **CONTINUING},
        fails(STUCK, 45.0, COORDINATOR),
        (DOCKER,),
    ),
    *(
        Case(
            f"coordinator-{moment.name.lower()}",
            Fault("the coordinator's container is killed", strikes.kill_containers("coordinator")),
            moment,
            {**LONG, **GLOO},
            fails(None, 30.0, named=COORDINATOR),
            (DOCKER,),
            options=("--cold",),
        )
        for moment in (Moment.START, Moment.ASSIGNMENT)
    ),
    Case(
        "coordinator-and-node",
        Fault(
            "the coordinator's and a node's container are killed at once",
            strikes.kill_containers("coordinator", "node"),
        ),
        Moment.EPOCH,
        {**LONG, **GLOO},
        fails(
            Fact("killed", "SIGKILL|killed"),
            named=Fact("the coordinator or the node", r"coordinator|node \d"),
        ),
        (DOCKER,),
        options=("--cold",),
    ),
    Case(
        "agent",
        strikes.kill_process("a node's agent gets SIGKILL", "trainer.cluster node"),
        Moment.EPOCH,
        {**LONG, **GLOO},
        fails(None, named=ANY_NODE),
        (DOCKER,),
        options=("--cold",),
    ),
    Case(
        "agent-warm",
        strikes.kill_process("a warm node's agent gets SIGKILL", "trainer.cluster node"),
        Moment.EPOCH,
        {**SHORT, **GLOO},
        ends_ok(named=ANY_NODE, cause=Fact("the run was repeated", "repeated")),
        (DOCKER,),
    ),
    *(
        Case(
            f"container-terminated{suffix}",
            Fault("init of a node's container gets SIGTERM", strikes.terminate_containers),
            moment,
            {**LONG, **GLOO},
            fails(Fact("stopped by SIGTERM", "SIGTERM")),
            (DOCKER,),
            options=options,
        )
        for suffix, moment, options in (
            ("", Moment.EPOCH, ()),
            ("-cold", Moment.EPOCH, ("--cold",)),
        )
    ),
    Case(
        "container-terminated-connecting",
        Fault("init of a node's container gets SIGTERM", strikes.terminate_containers),
        Moment.ASSIGNMENT,
        # A rank that is not forked yet is lost with its container, so the run is repeated.
        {**SHORT, **GLOO},
        Verdict(
            ("failed", "ok"),
            ANY_NODE,
            Fact("SIGTERM, or repeated", "SIGTERM|repeated"),
            60.0,
            Then.GOES_ON,
            1,
        ),
        (DOCKER,),
    ),
    Case(
        "container-at-start",
        Fault("a node's container is killed", strikes.kill_containers("node")),
        Moment.START,
        {**LONG, **GLOO},
        fails(None, 30.0),
        (DOCKER,),
        options=("--cold",),
    ),
    Case(
        "container",
        Fault("a node's container is killed", strikes.kill_containers("node")),
        Moment.EPOCH,
        {**LONG, **GLOO},
        fails(Fact("killed together with its container", "container")),
        (DOCKER,),
        options=("--cold",),
    ),
    Case(
        "container-connecting",
        Fault("a node's container is killed", strikes.kill_containers("node")),
        Moment.ASSIGNMENT,
        {**LONG, **GLOO},
        fails(Fact("killed together with its container", "container")),
        (DOCKER,),
        options=("--cold",),
    ),
    Case(
        "container-checkpoint",
        Fault("a node's container is killed", strikes.kill_containers("node")),
        Moment.CHECKPOINT,
        RESUMABLE,
        Verdict(("failed", "ok"), NODE, KILLED, 30.0, Then.GOES_ON, 1, silent=("ok",)),
        (DOCKER,),
        again=True,
    ),
    Case(
        "containers",
        Fault("two nodes' containers are killed at once", strikes.kill_containers("node")),
        Moment.EPOCH,
        {**LONG, **GLOO, "nodes": 3},
        fails(Fact("killed together with its container", "container")),
        (DOCKER,),
        count=2,
        options=("--cold",),
    ),
    Case(
        "container-warm",
        Fault("a warm node's container is killed", strikes.kill_containers("node")),
        Moment.EPOCH,
        {**SHORT, **GLOO},
        ends_ok(named=NODE, cause=Fact("the run was repeated", "repeated")),
        (DOCKER,),
    ),
    Case(
        "throttle",
        strikes.kill_command("the throttle of a slower node gets SIGKILL", "local.throttle"),
        Moment.EPOCH,
        {**LONG, **GLOO, "node_speed": {-1: 0.5}},
        fails(Fact("has ended before the run", "ended before"), named=Fact("the throttle", "throttle")),
        (LOCAL,),
    ),
    Case(
        "compose",
        strikes.kill_command("docker compose gets SIGKILL", "compose"),
        Moment.START,
        {**LONG, **GLOO},
        fails(None, 40.0, named=Fact("docker compose", "compose")),
        (DOCKER,),
        options=("--cold",),
    ),
    Case(
        "engine",
        Fault(
            "the Docker engine gets SIGKILL",
            strikes.stop_engine,
            repair=strikes.start_engine,
            needs_root=True,
            alone=True,
            leaves=True,
        ),
        Moment.EPOCH,
        {**LONG, **GLOO},
        stops(Fact("the Docker engine", "engine"), None, 2, 60.0),
        (DOCKER,),
    ),
)

LIMITS = (
    Case(
        "memory",
        Fault("a node needs more memory than its limit", strikes.nothing),
        Moment.START,
        {**GLOO, "memory_mb": 256, "dataset": {"name": "synthetic", "samples": 200_000}},
        fails(Fact("its limit", "256 MiB"), 60.0, ANY_NODE),
        (DOCKER,),
    ),
    Case(
        "allocation",
        Fault("a node asks for more memory than there is", strikes.nothing),
        Moment.START,
        {
            **TRAINING,
            **GLOO,
            "dataset": {"name": "synthetic", "samples": 100, "height": 10**6, "width": 10**6},
        },
        fails(Fact("the allocation", "allocate|memory"), 60.0, ANY_NODE),
    ),
    Case(
        "pids",
        Fault("a node starts more processes and threads than its limit", strikes.nothing),
        Moment.START,
        {**LONG, **GLOO, "pids": 16, "threads": 32},
        fails(None, 60.0, ANY_NODE),
        (DOCKER,),
    ),
    Case(
        "shared-memory",
        Fault("a node's /dev/shm is too small for the model", strikes.nothing),
        Moment.START,
        {**LONG, **HOGWILD, "shm_mb": 16, "model": {"name": "mlp", "hidden": [20_000]}},
        fails(None, 60.0, named=Fact("the node", r"node|process")),
        (DOCKER,),
    ),
    Case(
        "temporary-full",
        Fault("a node's /tmp is full", strikes.fill_directory("/tmp")),
        Moment.EPOCH,
        {**SHORT, **GLOO},
        ends_ok(),
        (DOCKER,),
    ),
    Case(
        "events-full",
        Fault("a node's directory for events is full", strikes.fill_directory("/run/shardyard")),
        Moment.EPOCH,
        {**LONG, **GLOO},
        fails(Fact("the directory is full", "/run/shardyard is full"), 30.0),
        (DOCKER,),
    ),
    Case(
        "events-full-mpi",
        Fault("a node's directory for events is full", strikes.fill_directory("/run/shardyard")),
        Moment.EPOCH,
        {**LONG, **MPI},
        fails(Fact("the directory is full", "/run/shardyard is full"), 30.0),
        (DOCKER,),
    ),
)

FILES = (
    Case(
        "results-full",
        strikes.full_disk(strikes.results_of, "the disk of the results is full"),
        Moment.EPOCH,
        RESUMABLE,
        stops(RESULTS, Fact("the disk is full", "disk is full"), 1),
        again=True,
    ),
    Case(
        "results-removed",
        Fault("the results directory of a run is removed", strikes.remove_results),
        Moment.EPOCH,
        {**SHORT, **GLOO},
        stops(RESULTS, Fact("it was removed", "removed"), 1),
        again=True,
    ),
    Case(
        "checkpoints-full",
        strikes.full_disk(strikes.checkpoints_of, "the disk of the checkpoints is full"),
        Moment.CHECKPOINT,
        RESUMABLE,
        fails(Fact("no space left", "No space left"), named=ANY_NODE),
        again=True,
    ),
    Case(
        "data-removed",
        strikes.damaged_data(
            "a file of the dataset is missing and cannot be downloaded", lambda p: p.unlink()
        ),
        Moment.BEFORE,
        {**GLOO, "dataset": "mnist", "model": "mlp", "epochs": 1},
        stops(DATA, None, 2),
        environment={"https_proxy": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"},
        again=True,
    ),
    Case(
        "data-damaged",
        strikes.damaged_data("a file of the dataset is damaged", strikes.truncate),
        Moment.BEFORE,
        {**GLOO, "dataset": "mnist", "model": "mlp", "epochs": 1},
        stops(DATA, None, 2),
        again=True,
    ),
    Case(
        "data-unreadable",
        strikes.damaged_data(
            "a file of the dataset cannot be read by the containers' user", lambda path: path.chmod(0o600)
        ),
        Moment.BEFORE,
        {**GLOO, "dataset": "mnist", "model": "mlp", "epochs": 1},
        stops(DATA, None, 2),
        (DOCKER,),
        again=True,
    ),
    Case(
        "checkpoint-damaged",
        strikes.damaged_checkpoint("the last checkpoint of a rank is damaged", strikes.flip),
        Moment.BEFORE,
        RESUMABLE,
        ends_ok(named=NODE, cause=Fact("why it was skipped", "damaged")),
        earlier=Earlier.KILLED,
    ),
    Case(
        "checkpoint-foreign",
        strikes.damaged_checkpoint("the last checkpoint is of another run", strikes.of_another_run),
        Moment.BEFORE,
        RESUMABLE,
        ends_ok(named=NODE, cause=Fact("why it was skipped", "run is other-")),
        earlier=Earlier.KILLED,
    ),
    Case(
        "checkpoint-empty",
        strikes.damaged_checkpoint("the last checkpoint of a rank is empty", strikes.empty),
        Moment.BEFORE,
        RESUMABLE,
        ends_ok(named=NODE, cause=Fact("why it was skipped", "damaged")),
        earlier=Earlier.KILLED,
    ),
    Case(
        "checkpoint-linked",
        strikes.damaged_checkpoint("the last checkpoint of a rank is a link to another file", strikes.link),
        Moment.BEFORE,
        RESUMABLE,
        ends_ok(named=NODE, cause=Fact("why it was skipped", "damaged|cannot be read")),
        earlier=Earlier.KILLED,
    ),
    Case(
        "checkpoint-unreadable",
        strikes.damaged_checkpoint("the last checkpoint of a rank cannot be read", strikes.forbid),
        Moment.BEFORE,
        RESUMABLE,
        ends_ok(named=NODE, cause=Fact("why it was skipped", "cannot be read")),
        (DOCKER,),  # as root, local processes read any file
        earlier=Earlier.KILLED,
    ),
    Case(
        "result-damaged",
        Fault("the result of a finished run is damaged", strikes.damaged_result),
        Moment.BEFORE,
        {**TRAINING, **GLOO, "epochs": 2},
        ends_ok(),
        (LOCAL,),
        earlier=Earlier.FINISHED,
    ),
    Case(
        "record-damaged",
        Fault("the record of the sweep is damaged", strikes.damaged_record),
        Moment.BEFORE,
        {**TRAINING, **GLOO, "epochs": 2},
        ends_ok(),
        (LOCAL,),
        earlier=Earlier.FINISHED,
    ),
    Case(
        "events-damaged",
        Fault("a rank writes something else than an event", strikes.damage_events),
        Moment.EPOCH,
        {**LONG, **GLOO},
        fails(Fact("its events are damaged", "damaged")),
        (LOCAL,),
        sample=(LOCAL,),
    ),
    Case(
        "events-removed",
        Fault("the file of a rank's events is removed", strikes.remove_events),
        Moment.EPOCH,
        {**LONG, **GLOO},
        fails(Fact("its events are damaged", r"rank-\d.jsonl")),
    ),
)

ORCHESTRATOR_AND_REAPER = Case(
    "orchestrator-and-reaper",
    Fault(
        "the orchestrator and its reaper get SIGKILL",
        strikes.kill_orchestrator_and_reaper,
        leaves=True,
    ),
    Moment.EPOCH,
    {**SHORT, **GLOO},
    stops(None, None, -9),
    (DOCKER,),
    again=True,
)

ORCHESTRATOR = (
    *(
        Case(
            f"orchestrator-{number.name.lower()}",
            strikes.signal_orchestrator(number, f"the orchestrator gets {number.name}{origin}"),
            Moment.EPOCH if number is signal.SIGKILL else Moment.CHECKPOINT,
            {**RESUMABLE},
            stops(None, None, 130 if number is not signal.SIGKILL else -9),
            again=True,
            sample=(LOCAL,) if number is signal.SIGINT else (),
        )
        for number, origin in (
            (signal.SIGINT, " (Ctrl-C)"),
            (signal.SIGTERM, ""),
            (signal.SIGHUP, " (the terminal is closed)"),
            (signal.SIGKILL, ""),
        )
    ),
    Case(
        "orchestrator-at-start",
        strikes.signal_orchestrator(signal.SIGKILL, "the orchestrator gets SIGKILL"),
        Moment.START,
        {**SHORT, **GLOO},
        stops(None, None, -9),
        again=True,
    ),
    Case(
        "orchestrator-mpi",
        strikes.signal_orchestrator(signal.SIGKILL, "the orchestrator gets SIGKILL"),
        Moment.EPOCH,
        {**SHORT, **MPI},
        stops(None, None, -9),
        again=True,
    ),
    Case(
        "orchestrator-and-rank",
        Fault("a rank and the orchestrator get SIGKILL at once", strikes.kill_with_orchestrator),
        Moment.EPOCH,
        RESUMABLE,
        stops(None, None, -9),
        again=True,
    ),
    ORCHESTRATOR_AND_REAPER,
)

REQUEUEABLE = {**TRAINING, **GLOO, "epochs": 1000, "checkpoint_epochs": 10}
NODE_FAILURE = Fact("the failed node", r"lost node yard\d: node failure")
REQUEUED = Fact("the requeue", "requeue 1: ")

ON_SLURM: tuple[Case, ...] = tuple(
    replace(case, name=f"slurm-{case.name}", runtimes=(SLURM,))
    for case in (
        Case("kill-connecting", KILL, Moment.ASSIGNMENT, {**LONG, **GLOO}, fails(KILLED)),
        Case("kill-epoch", KILL, Moment.EPOCH, {**LONG, **GLOO}, fails(KILLED)),
        Case("kill-mpi", KILL, Moment.EPOCH, {**LONG, **MPI}, fails(KILLED)),
        Case(
            "kill-then-resume",
            KILL,
            Moment.CHECKPOINT,
            RESUMABLE,
            Verdict(("failed", "ok"), NODE, KILLED, 30.0, Then.GOES_ON, 1, silent=("ok",)),
            again=True,
        ),
        Case(
            "slurmstepd",
            slurm_strikes.lost("the slurmstepd of a rank gets SIGKILL", slurm_strikes.slurmstepd),
            Moment.EPOCH,
            {**LONG, **GLOO},
            fails(Fact("its slurmstepd is gone", "slurmstepd"), 60.0),
        ),
        *(
            Case(
                f"{find.__name__}-restarted",
                slurm_strikes.restarted(f"{what} gets SIGKILL, and is started again", find),
                Moment.EPOCH,
                {**SHORT, **GLOO, "epochs": epochs},
                ends_ok(120.0),
            )
            for find, what, epochs in (
                (slurm_strikes.slurmd, "the slurmd of a node", SHORT["epochs"]),
                (slurm_strikes.slurmctld, "slurmctld", 2000),
                (slurm_strikes.munged, "munged", 2000),
            )
        ),
        Case(
            "slurmd",
            slurm_strikes.lost("the slurmd of a node gets SIGKILL", slurm_strikes.slurmd),
            Moment.EPOCH,
            {**LONG, **GLOO},
            fails(NODE_FAILURE, 150.0, named=None),
        ),
        Case(
            "machine",
            slurm_strikes.lost("all processes of a node get SIGKILL", slurm_strikes.machine),
            Moment.EPOCH,
            {**LONG, **GLOO},
            fails(Fact("killed, or node failure", "SIGKILL|node failure"), 90.0, named=None),
        ),
        Case(
            "suspend-node",
            Fault(
                "all processes of a node are suspended", slurm_strikes.suspend, repair=slurm_strikes.resume
            ),
            Moment.EPOCH,
            {**LONG, **GLOO},
            fails(NODE_FAILURE, 150.0, named=None),
        ),
        Case(
            "machine-requeued",
            slurm_strikes.requeued(
                "all processes of a node get SIGKILL", slurm_strikes.kill(slurm_strikes.machine)
            ),
            Moment.CHECKPOINT,
            REQUEUEABLE,
            ends_ok(240.0, cause=REQUEUED),
        ),
        Case(
            "preempted",
            Fault("another job preempts the run", slurm_strikes.preempt),
            Moment.EPOCH,
            {**LONG, **GLOO},
            fails(Fact("preemption", "preempted"), 60.0, named=None),
        ),
        Case(
            "preempted-requeued",
            slurm_strikes.requeued("another job preempts the run", slurm_strikes.preempt),
            Moment.CHECKPOINT,
            REQUEUEABLE,
            ends_ok(240.0, cause=REQUEUED),
        ),
    )
)

ON_SWARM: tuple[Case, ...] = tuple(
    replace(case, name=f"swarm-{case.name}", runtimes=(SWARM,))
    for case in (
        Case("kill-connecting", KILL, Moment.ASSIGNMENT, {**LONG, **GLOO}, fails(KILLED)),
        Case("kill-epoch", KILL, Moment.EPOCH, {**LONG, **GLOO}, fails(KILLED)),
        Case("kill-mpi", KILL, Moment.EPOCH, {**LONG, **MPI}, fails(KILLED)),
        Case("kill-rpc", KILL, Moment.EPOCH, {**LONG, **RPC}, fails(KILLED)),
        Case(
            "agent",
            strikes.kill_process("a node's agent gets SIGKILL", "trainer.cluster node"),
            Moment.EPOCH,
            {**LONG, **GLOO},
            fails(None, named=ANY_NODE),
        ),
        Case(
            "container-at-start",
            Fault("a node's container is killed", swarm_strikes.kill_containers("node")),
            Moment.START,
            {**LONG, **GLOO},
            fails(None, 30.0),
        ),
        Case(
            "container",
            Fault("a node's container is killed", swarm_strikes.kill_containers("node")),
            Moment.EPOCH,
            {**LONG, **GLOO},
            fails(KILLED),
        ),
        Case(
            "coordinator",
            Fault("the coordinator's container is killed", swarm_strikes.kill_containers("coordinator")),
            Moment.EPOCH,
            {**LONG, **GLOO},
            fails(KILLED, named=COORDINATOR),
        ),
        Case(
            "suspend-node",
            Fault("all processes of a node are suspended", swarm_strikes.suspend_nodes),
            Moment.EPOCH,
            {**LONG, **GLOO},
            fails(STUCK, 60.0),
        ),
        Case(
            "machine",
            Fault("the machine of a node ends", swarm_strikes.lose, repair=swarm_strikes.repair),
            Moment.EPOCH,
            {**LONG, **GLOO},
            fails(None, 60.0),
            sweep=swarm_strikes.ELSEWHERE,
        ),
        Case(
            "cut",
            swarm_strikes.cut("the machine of a node is cut off from the network", None),
            Moment.EPOCH,
            {**LONG, **GLOO},
            fails(None, 60.0),
            sweep=swarm_strikes.ELSEWHERE,
        ),
        Case(
            "cut-short",
            swarm_strikes.cut("the machine of a node is cut off for 3 s", 3.0),
            Moment.EPOCH,
            {**SHORT, **GLOO},
            ends_ok(),
            sweep=swarm_strikes.ELSEWHERE,
        ),
        Case(
            "manager",
            Fault(
                "the manager's engine gets SIGKILL",
                swarm_strikes.lose_manager,
                repair=swarm_strikes.repair,
                leaves=True,
            ),
            Moment.EPOCH,
            {**SHORT, **GLOO},
            stops(Fact("the Docker engine", "engine"), None, 2, 60.0),
            sweep=swarm_strikes.ELSEWHERE,
            again=True,
        ),
        *(
            Case(
                f"orchestrator-{number.name.lower()}",
                strikes.signal_orchestrator(number, f"the orchestrator gets {number.name}"),
                Moment.EPOCH,
                {**SHORT, **GLOO},
                stops(None, None, 130 if number is signal.SIGINT else -9),
                again=True,
            )
            for number in (signal.SIGINT, signal.SIGKILL)
        ),
        ORCHESTRATOR_AND_REAPER,
    )
)

REPEATED = Fact("the run was repeated", "repeated")
# Still trains when Ray has noticed that a machine is lost.
REPEATABLE = {**TRAINING, **GLOO, "epochs": 2000}
WITHOUT_ROOM = {**GLOO, "cpus": float(ray_strikes.LARGE)}

ON_LOCAL_RAYLETS: tuple[Case, ...] = tuple(
    replace(case, environment=ray_strikes.LOCAL_RAYLETS)
    for case in (
        Case("kill-connecting", KILL, Moment.ASSIGNMENT, {**LONG, **GLOO}, fails(KILLED)),
        Case("kill-epoch", KILL, Moment.EPOCH, {**LONG, **GLOO}, fails(KILLED)),
        Case(
            "suspend-node",
            Fault("an actor and its processes are suspended", ray_strikes.suspend(ray_strikes.actor)),
            Moment.EPOCH,
            REPEATABLE,
            ends_ok(180.0, named=NODE, cause=REPEATED),
        ),
        Case(
            "driver",
            strikes.kill_process("Ray's driver gets SIGKILL", ray_strikes.DRIVER),
            Moment.EPOCH,
            REPEATABLE,
            ends_ok(named=Fact("Ray's driver", "Ray's driver"), cause=REPEATED),
        ),
        Case(
            "head",
            strikes.kill_process("the head gets SIGKILL", ray_strikes.HEAD),
            Moment.EPOCH,
            REPEATABLE,
            replace(
                ends_ok(named=Fact("the head, in the next row", "head of the Ray cluster")), of_next=True
            ),
        ),
        *(
            Case(
                f"orchestrator-{number.name.lower()}",
                strikes.signal_orchestrator(number, f"the orchestrator gets {number.name}"),
                Moment.EPOCH,
                REPEATABLE,
                stops(None, None, 130 if number is signal.SIGINT else -9),
                again=True,
            )
            for number in (signal.SIGINT, signal.SIGKILL)
        ),
        Case(
            "orchestrator-and-driver",
            Fault(
                "the orchestrator and Ray's driver get SIGKILL",
                ray_strikes.kill_orchestrator_and_driver,
                leaves=True,
            ),
            Moment.EPOCH,
            REPEATABLE,
            stops(None, None, -9),
            again=True,
        ),
    )
)

ON_RAY: tuple[Case, ...] = tuple(
    replace(case, name=f"ray-{case.name}", runtimes=(RAY,))
    for case in (
        *ON_LOCAL_RAYLETS,
        Case(
            "actor",
            Fault("the actor of a node gets SIGKILL", ray_strikes.kill(ray_strikes.actor)),
            Moment.EPOCH,
            REPEATABLE,
            ends_ok(named=NODE, cause=REPEATED),
        ),
        *(
            Case(
                name,
                Fault(words, strike, repair=ray_strikes.repair),
                Moment.EPOCH,
                REPEATABLE,
                ends_ok(150.0, named=NODE, cause=REPEATED),
            )
            for name, words, strike in (
                ("raylet", "the raylet of a machine gets SIGKILL", ray_strikes.kill(ray_strikes.machine)),
                (
                    "suspend-machine",
                    "a raylet and its processes are suspended for 75 s",
                    ray_strikes.suspend(ray_strikes.machine, ray_strikes.CUT_OFF_S),
                ),
                ("preempted", "a machine is preempted, with 5 s of notice", ray_strikes.preempt),
            )
        ),
        Case(
            "no-room",
            Fault("no machine has the CPUs of a node", strikes.nothing),
            Moment.PENDING,
            {**TRAINING, **WITHOUT_ROOM},
            fails(Fact("what is missing", "no room for 2 nodes of 8 CPUs, .* 0 of 2 machines"), named=None),
            options=("--cold",),
            sweep={"ray": {"wait_s": 5}},
        ),
        Case(
            "machine-added",
            Fault("a machine with the CPUs is added", ray_strikes.add_machine, repair=ray_strikes.repair),
            Moment.PENDING,
            {**SHORT, **WITHOUT_ROOM},
            ends_ok(),
            options=("--cold",),
        ),
        Case(
            "cluster-orchestrator-sigkill",
            strikes.signal_orchestrator(signal.SIGKILL, "the orchestrator gets SIGKILL"),
            Moment.EPOCH,
            REPEATABLE,
            stops(None, None, -9),
            again=True,
        ),
    )
)

SECTIONS: dict[str, tuple[Case, ...]] = {
    "Ranks": KILLED_RANKS,
    "Suspended and unreachable nodes": SUSPENDED,
    "Restarts": RESTARTS,
    "Other processes and containers": PROCESSES,
    "Limits": LIMITS,
    "Files and disks": FILES,
    "The orchestrator": ORCHESTRATOR,
    "Slurm": ON_SLURM,
    "Docker Swarm": ON_SWARM,
    "Ray": ON_RAY,
}
CASES: tuple[Case, ...] = tuple(case for cases in SECTIONS.values() for case in cases)
