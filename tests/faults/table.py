"""All cases, by section of the page. docs/faults.md is written from this table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from signal import SIGHUP, SIGINT, SIGKILL, SIGSTOP, SIGTERM
from typing import Any

from tests.faults import ray_strikes, slurm_strikes, strikes, swarm_strikes
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
    Fault,
    Moment,
    Strike,
    Then,
    Verdict,
    long,
    short,
)
from tests.faults.strikes import DAMAGED, kill_containers, kill_process, signal_orchestrator, signal_ranks
from tests.support.places import MPIRUN

# Runs; `long` and `short` train with all_reduce over gloo.

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
BRIEF = {**TRAINING, **GLOO, "epochs": 2}
MNIST = {**GLOO, "dataset": "mnist", "model": "mlp", "epochs": 1}
LARGE_IMAGES = {"name": "synthetic", "samples": 100, "height": 10**6, "width": 10**6}
# Nearly all of its time is evaluation, or checkpoints.
EVALUATING = long(dataset={"name": "synthetic", "samples": 64, "test_samples": 20_000, "noise": 1.0})
CHECKPOINTING = long(checkpoint_steps=1)
# Writing many weights takes a moment.
WRITING = {**BRIEF, "epochs": 3, "model": {"name": "mlp", "hidden": [8000]}, "save_weights": True}
REQUEUEABLE = short(epochs=1000, checkpoint_epochs=10)
# Still trains when Ray has noticed that a machine is lost.
REPEATABLE = short(epochs=2000)
WITHOUT_ROOM = {**GLOO, "cpus": float(ray_strikes.LARGE)}

# Facts

NODE = Fact("the node", "")  # checked against the victims
ANY_NODE = Fact("the node", r"\bnode \d")  # any of those to which it happened
KILLED = Fact("killed by SIGKILL", "SIGKILL|killed together with its container")
BY_SIGKILL = Fact("killed by SIGKILL", "SIGKILL")
WITH_CONTAINER = Fact("killed together with its container", "container")
MPIRUN_KILLED = Fact("killed by SIGKILL", "^mpirun.*SIGKILL")
BY_SIGTERM = Fact("stopped by SIGTERM", "SIGTERM")
SUSPENDED_BY_SIGNAL = Fact("suspended by a signal", "suspended")
STUCK = Fact("is stuck, or silent", "stuck|silent|heartbeat|no answer")
REPEATED = Fact("the run was repeated", "repeated")
ALL_RESTARTED = Fact("lost, and all ranks were restarted", "restarted")
RUN_FULL = Fact("the directory is full", "/run/shardyard is full")
NODE_FAILURE = Fact("the failed node", r"lost node yard\d: node failure")
REQUEUED = Fact("the requeue", "requeue 1: ")
COORDINATOR = Fact("the coordinator", r"\bcoordinator\b")
LAUNCHER = Fact("mpirun or the launcher", r"\b(mpirun|launcher)\b")
WARM = Fact("the warm nodes", r"\bwarm (nodes|container)\b")
ENGINE = Fact("the Docker engine", "engine")
RESULTS = Fact("the results directory", r"/out\b")
DATA = Fact("the file", r"train-images-idx3-ubyte\.gz")

# Verdicts


def fails(cause: Fact | None, within_s: float = 15.0, named: Fact | None = NODE) -> Verdict:
    """The run fails, and the sweep goes on."""
    return Verdict(("failed",), named, cause, within_s, Then.GOES_ON, 1)


def fails_or_ok(cause: Fact, within_s: float) -> Verdict:
    """As `fails`, or the fault came too late."""
    return replace(fails(cause, within_s), status=("failed", "ok"), silent=("ok",))


def times_out(cause: Fact, within_s: float, named: Fact = NODE) -> Verdict:
    """The run is stopped at its limit, and the sweep goes on."""
    return replace(fails(cause, within_s, named), status=("timeout",))


def ends_ok(within_s: float = 90.0, named: Fact | None = None, cause: Fact | None = None) -> Verdict:
    """The run ends ok; what has happened is a flag of its row."""
    return Verdict(("ok",), named, cause, within_s, Then.OK, 0)


def stops(named: Fact | None, cause: Fact | None, code: int, within_s: float = 20.0) -> Verdict:
    """The sweep stops."""
    return Verdict((), named, cause, within_s, Then.STOPS, code)


KILLED_COMMAND = stops(None, None, -SIGKILL)

# Faults


def kill(what: str) -> Fault:
    return signal_ranks(SIGKILL, f"{what} gets SIGKILL")


def injected(fault: str, **fields: Any) -> dict[str, Any]:
    """A run in which the strategy fault_injection makes the fault."""
    strategy = {"name": "fault_injection", "fault": fault, "rank": 1, "work_s": 0.3}
    return {"strategy": strategy, "transport": "gloo", "nodes": 2, **fields}


KILL = kill("a rank")
SUSPEND = signal_ranks(SIGSTOP, "a rank is suspended (SIGSTOP)")
SUSPENDED_COORDINATOR = strikes.suspend_process(
    "the coordinator is suspended", "trainer.cluster coordinator"
)
KILLED_COORDINATOR = Fault("the coordinator's container is killed", kill_containers("coordinator"))
KILLED_CONTAINER = Fault("a node's container is killed", kill_containers("node"))
TERMINATED = Fault("init of a node's container gets SIGTERM", strikes.terminate_containers)
CUT_SHORT = Fault("a node is cut off for 3 s", strikes.cut(3.0), needs_root=True)
WARM_PARENT = kill_process("a warm parent gets SIGKILL", "trainer.warm")
KILLED_AGENT = kill_process("a node's agent gets SIGKILL", "trainer.cluster node")
KILLED_MPIRUN = kill_process("mpirun gets SIGKILL", *MPIRUN)
FULL_EVENTS = Fault("a node's directory for events is full", strikes.fill_directory("/run/shardyard"))
END = {
    SIGINT: signal_orchestrator(SIGINT, "the orchestrator gets SIGINT"),
    SIGKILL: signal_orchestrator(SIGKILL, "the orchestrator gets SIGKILL"),
}

# Cases

local = partial(Case, runtimes=(LOCAL,))
docker = partial(Case, runtimes=(DOCKER,))
cold = partial(Case, runtimes=(DOCKER,), options=("--cold",))
resumed = partial(Case, again=True)

CONNECTING = Case("kill-connecting", KILL, fails(KILLED), moment=Moment.ASSIGNMENT)
KILL_EPOCH = Case("kill-epoch", KILL, fails(KILLED))
KILL_MPI = Case("kill-mpi", KILL, fails(KILLED), long(MPI))
KILL_RPC = Case("kill-rpc", KILL, fails(KILLED), long(RPC))
THEN_RESUME = resumed("kill-then-resume", KILL, fails_or_ok(KILLED, 30.0), RESUMABLE, Moment.CHECKPOINT)
AND_REAPER = resumed(
    "orchestrator-and-reaper",
    Fault("the orchestrator and its reaper get SIGKILL", strikes.kill_orchestrator_and_reaper, leaves=True),
    KILLED_COMMAND,
    short(),
    runtimes=(DOCKER,),
)


def ended(run: dict[str, Any]) -> list[Case]:
    """The orchestrator ends by Ctrl-C, and by force."""
    verdicts = {SIGINT: stops(None, None, 130), SIGKILL: KILLED_COMMAND}
    return [
        resumed(f"orchestrator-{number.name.lower()}", END[number], verdict, run)
        for number, verdict in verdicts.items()
    ]


def on(runtime: str, cases: Sequence[Case]) -> list[Case]:
    """Cases of a runtime, whose names start with its name."""
    return [replace(case, name=f"{runtime}-{case.name}", runtimes=(runtime,)) for case in cases]


KILLED_RANKS = (
    local(
        "kill-at-start",
        Fault("a rank gets SIGKILL", strikes.kill_starting_rank),
        fails(BY_SIGKILL),
        moment=Moment.START,
    ),
    CONNECTING,
    replace(CONNECTING, name="kill-first-step", moment=Moment.FIRST_STEP),
    replace(KILL_EPOCH, sample=(LOCAL,)),
    Case("kill-evaluation", KILL, fails(KILLED), EVALUATING, Moment.EVALUATION),
    Case("kill-checkpoint", KILL, fails(KILLED), CHECKPOINTING, Moment.CHECKPOINT),
    THEN_RESUME,
    Case("kill-teardown", KILL, fails_or_ok(KILLED, 15.0), WRITING, Moment.TEARDOWN),
    replace(KILL_MPI, run=long(MPI, nodes=3)),
    Case("kill-mpi-connecting", KILL, fails(KILLED), long(MPI), Moment.ASSIGNMENT),
    KILL_RPC,
    Case("kill-ddp", KILL, fails(KILLED), long(strategy="ddp", nodes=3)),
    Case("kill-fsdp", KILL, fails(KILLED), long(strategy="fsdp")),
    local(
        "kill-several-in-node",
        kill("one of two ranks in a node"),
        fails(KILLED),
        long(processes_per_node=2),
    ),
    *(
        Case(name, kill(what), fails(KILLED), long(run), victims=victims)
        for name, what, run, victims in (
            ("kill-server", "the parameter server", SERVER, (0,)),
            ("kill-worker", "a worker of the parameter server", SERVER, (1, 2)),
            ("kill-async-server", "the asynchronous parameter server", ASYNC, (0,)),
            ("kill-async-worker", "a worker of the asynchronous parameter server", ASYNC, (1, 2)),
            ("kill-stage", "a pipeline stage", PIPELINE, ()),
        )
    ),
    local("kill-torch-stage", kill("a stage of torch's pipeline"), fails(KILLED), long(TORCH_PIPELINE)),
    Case("kill-rpc-master", kill("the RPC master"), fails(KILLED), long(SPLIT), victims=(0,)),
    Case(
        "kill-rpc-stage",
        kill("a node with a part of the RPC master's model"),
        fails(KILLED),
        long(SPLIT),
        victims=(1, 2),
    ),
    Case("kill-hogwild", kill("a rank of hogwild"), fails(KILLED), long(HOGWILD)),
    Case(
        "kill-hogwild-parent",
        Fault("the parent of hogwild's ranks gets SIGKILL", strikes.kill_parent_of_ranks),
        fails(KILLED, named=Fact("the process that started the ranks", "process that started all|warm")),
        long(HOGWILD),
        options=("--cold",),
    ),
    *(
        Case(name, signal_ranks(SIGKILL, words), fails(KILLED), long(nodes=3), count=count)
        for name, words, count in (
            ("kill-two", "two ranks get SIGKILL at once", 2),
            ("kill-all", "all ranks get SIGKILL at once", 3),
        )
    ),
    Case(
        "terminate",
        signal_ranks(SIGTERM, "a rank gets SIGTERM from another program"),
        fails(Fact("stopped by SIGTERM from outside", "SIGTERM")),
    ),
    *(
        Case(name, Fault(words, strikes.nothing), verdict, run, moment, victims=(1,))
        for name, words, verdict, run, moment in (
            (
                "crash",
                "a rank raises an exception",
                fails(Fact("the exception", "InjectedFault")),
                injected("crash"),
                Moment.FIRST_STEP,
            ),
            (
                "exit",
                "a rank ends with exit code 0 before it reports",
                fails(Fact("ended before it reported its result", "exit code 0 before it reported")),
                injected("exit"),
                Moment.ASSIGNMENT,
            ),
            (
                "stall",
                "a rank computes forever",
                times_out(Fact("where it was last seen", "last seen"), 40.0),
                injected("stall", timeout_s=30.0),
                Moment.FIRST_STEP,
            ),
        )
    ),
)

SUSPENDED = (
    Case(
        "suspend-short", Fault("a rank is suspended for 3 s", strikes.suspend_for(3.0)), ends_ok(), short()
    ),
    Case("suspend", SUSPEND, times_out(SUSPENDED_BY_SIGNAL, 70.0), long(timeout_s=60.0)),
    Case(
        "suspend-connecting",
        SUSPEND,
        times_out(SUSPENDED_BY_SIGNAL, 70.0),
        long(timeout_s=60.0),
        Moment.ASSIGNMENT,
    ),
    cold(
        "suspend-node",
        Fault("all processes of a node are suspended", strikes.suspend_container),
        fails(STUCK, 60.0),
    ),
    docker("pause-short", Fault("a container is paused for 5 s", strikes.pause(5.0)), ends_ok(), short()),
    cold(
        "pause",
        Fault("a container is paused", strikes.pause(None)),
        replace(fails(None, 70.0), status=("failed", "timeout")),
        long(timeout_s=60.0),
    ),
    cold(
        "cut",
        Fault("a node is cut off from the network", strikes.cut(None), needs_root=True),
        fails(None, 30.0),
    ),
    docker(
        "cut-idle",
        Fault("a warm node without a rank is cut off", strikes.cut(None), needs_root=True),
        replace(
            ends_ok(
                named=Fact("the node", r"container node 2\b"),
                cause=Fact("the next run was repeated", "repeated"),
            ),
            of_next=True,
        ),
        short(),
        victims=(2,),
        next_run={"nodes": 3},
    ),
    docker("cut-short", CUT_SHORT, ends_ok(), short()),
    docker("cut-short-connecting", CUT_SHORT, ends_ok(), short(MPI), Moment.ASSIGNMENT),
)

RESTARTS = (
    Case("restart-rank", KILL, ends_ok(named=NODE, cause=ALL_RESTARTED), RESTARTED),
    Case(
        "restart-again",
        Fault("a rank gets SIGKILL, and another one during the restart", strikes.kill_again),
        ends_ok(named=NODE, cause=ALL_RESTARTED),
        RESTARTED,
        Moment.RESTART,
        count=2,
    ),
    Case(
        "restarts-used-up",
        Fault("more ranks get SIGKILL than restarts are allowed", strikes.kill_again),
        fails(Fact("killed by SIGKILL, after 1 restart", "after 1 restart"), 40.0),
        {**RESTARTED, "epochs": 1000, "restarts": 1},
        Moment.RESTART,
        count=2,
    ),
    Case(
        "restart-agent",
        kill_process("a torchrun agent gets SIGKILL", "trainer.torchrun_restarts"),
        fails(
            Fact("killed by SIGKILL", "SIGKILL|killed"), 40.0, named=Fact("the node", r"node \d|torchrun")
        ),
        {**RESTARTED, "epochs": 1000},
    ),
)

PROCESSES = (
    Case("warm-parent", WARM_PARENT, ends_ok(named=WARM, cause=REPEATED), short()),
    Case(
        "warm-parent-at-start",
        WARM_PARENT,
        ends_ok(named=WARM, cause=Fact("the run was repeated", "repeated|before")),
        short(),
        Moment.START,
    ),
    local(
        "warm-client",
        kill_process("the client of a warm parent gets SIGKILL", "warm/client.py"),
        fails(KILLED),
        victims=(0, 1),
        count=2,
    ),
    Case("mpirun", KILLED_MPIRUN, fails(MPIRUN_KILLED, named=LAUNCHER), long(MPI)),
    Case(
        "mpirun-terminated",
        kill_process("mpirun gets SIGTERM", *MPIRUN, number=SIGTERM),
        fails(Fact("stopped by SIGTERM", "^mpirun.*SIGTERM"), named=LAUNCHER),
        long(MPI),
    ),
    Case(
        "mpirun-suspended",
        strikes.suspend_process("mpirun is suspended", *MPIRUN),
        times_out(Fact("suspended by a signal", "mpirun.*suspended"), 40.0, LAUNCHER),
        long(MPI, timeout_s=30.0),
        Moment.START,
    ),
    local(
        "mpirun-at-start",
        strikes.kill_command("mpirun gets SIGKILL", *MPIRUN),
        fails(MPIRUN_KILLED, named=LAUNCHER),
        long(MPI),
        Moment.START,
    ),
    cold(
        "launcher",
        Fault("the launcher's container is killed", kill_containers("launcher")),
        fails(None, named=LAUNCHER),
        long(MPI),
    ),
    cold("coordinator", KILLED_COORDINATOR, fails(KILLED, named=COORDINATOR)),
    docker(
        "coordinator-warm",
        replace(KILLED_COORDINATOR, words="the coordinator's warm container is killed"),
        ends_ok(named=COORDINATOR, cause=REPEATED),
        short(),
    ),
    cold("coordinator-suspended", SUSPENDED_COORDINATOR, fails(STUCK, 45.0, COORDINATOR)),
    docker(
        "coordinator-suspended-warm", SUSPENDED_COORDINATOR, ends_ok(120.0, COORDINATOR, REPEATED), short()
    ),
    docker(
        "coordinator-suspended-continuing",
        SUSPENDED_COORDINATOR,
        fails(STUCK, 45.0, COORDINATOR),
        long(CONTINUING),
    ),
    *(
        cold(
            f"coordinator-{moment.name.lower()}",
            KILLED_COORDINATOR,
            fails(None, 30.0, COORDINATOR),
            moment=moment,
        )
        for moment in (Moment.START, Moment.ASSIGNMENT)
    ),
    cold(
        "coordinator-and-node",
        Fault(
            "the coordinator's and a node's container are killed at once",
            kill_containers("coordinator", "node"),
        ),
        fails(
            Fact("killed", "SIGKILL|killed"),
            named=Fact("the coordinator or the node", r"coordinator|node \d"),
        ),
    ),
    cold("agent", KILLED_AGENT, fails(None, named=ANY_NODE)),
    docker(
        "agent-warm",
        replace(KILLED_AGENT, words="a warm node's agent gets SIGKILL"),
        ends_ok(named=ANY_NODE, cause=REPEATED),
        short(),
    ),
    docker("container-terminated", TERMINATED, fails(BY_SIGTERM)),
    cold("container-terminated-cold", TERMINATED, fails(BY_SIGTERM)),
    docker(
        "container-terminated-connecting",
        TERMINATED,
        Verdict(
            ("failed", "ok"),
            ANY_NODE,
            Fact("SIGTERM, or repeated", "SIGTERM|repeated"),
            60.0,
            Then.GOES_ON,
            1,
        ),
        short(),  # a rank that is not forked yet is lost with its container, so the run is repeated
        Moment.ASSIGNMENT,
    ),
    cold("container-at-start", KILLED_CONTAINER, fails(None, 30.0), moment=Moment.START),
    cold("container", KILLED_CONTAINER, fails(WITH_CONTAINER)),
    cold("container-connecting", KILLED_CONTAINER, fails(WITH_CONTAINER), moment=Moment.ASSIGNMENT),
    replace(THEN_RESUME, name="container-checkpoint", fault=KILLED_CONTAINER, runtimes=(DOCKER,)),
    cold(
        "containers",
        replace(KILLED_CONTAINER, words="two nodes' containers are killed at once"),
        fails(WITH_CONTAINER),
        long(nodes=3),
        count=2,
    ),
    docker(
        "container-warm",
        replace(KILLED_CONTAINER, words="a warm node's container is killed"),
        ends_ok(named=NODE, cause=REPEATED),
        short(),
    ),
    local(
        "throttle",
        strikes.kill_command("the throttle of a slower node gets SIGKILL", "local.throttle"),
        fails(Fact("has ended before the run", "ended before"), named=Fact("the throttle", "throttle")),
        long(node_speed={-1: 0.5}),
    ),
    cold(
        "compose",
        strikes.kill_command("docker compose gets SIGKILL", "compose"),
        fails(None, 40.0, named=Fact("docker compose", "compose")),
        moment=Moment.START,
    ),
    docker(
        "engine",
        Fault(
            "the Docker engine gets SIGKILL",
            strikes.stop_engine,
            repair=strikes.start_engine,
            needs_root=True,
            alone=True,
            leaves=True,
        ),
        stops(ENGINE, None, 2, 60.0),
    ),
)

LIMITS = (
    *(
        Case(name, Fault(words, strikes.nothing), fails(cause, 60.0, named), run, Moment.START, runtimes)
        for name, words, cause, named, run, runtimes in (
            (
                "memory",
                "a node needs more memory than its limit",
                Fact("its limit", "256 MiB"),
                ANY_NODE,
                {**GLOO, "memory_mb": 256, "dataset": {"name": "synthetic", "samples": 200_000}},
                (DOCKER,),
            ),
            (
                "allocation",
                "a node asks for more memory than there is",
                Fact("the allocation", "allocate|memory"),
                ANY_NODE,
                {**TRAINING, **GLOO, "dataset": LARGE_IMAGES},
                (LOCAL, DOCKER),
            ),
            (
                "pids",
                "a node starts more processes and threads than its limit",
                None,
                ANY_NODE,
                long(pids=16, threads=32),
                (DOCKER,),
            ),
            (
                "shared-memory",
                "a node's /dev/shm is too small for the model",
                None,
                Fact("the node", r"node|process"),
                long(HOGWILD, shm_mb=16, model={"name": "mlp", "hidden": [20_000]}),
                (DOCKER,),
            ),
        )
    ),
    docker(
        "temporary-full", Fault("a node's /tmp is full", strikes.fill_directory("/tmp")), ends_ok(), short()
    ),
    docker("events-full", FULL_EVENTS, fails(RUN_FULL, 30.0)),
    docker("events-full-mpi", FULL_EVENTS, fails(RUN_FULL, 30.0), long(MPI)),
)

FILES = (
    resumed(
        "results-full",
        strikes.full_disk(strikes.results_of, "the disk of the results is full"),
        stops(RESULTS, Fact("the disk is full", "disk is full"), 1),
        RESUMABLE,
    ),
    resumed(
        "results-removed",
        Fault("the results directory of a run is removed", strikes.remove_results),
        stops(RESULTS, Fact("it was removed", "removed"), 1),
        short(),
    ),
    resumed(
        "checkpoints-full",
        strikes.full_disk(strikes.checkpoints_of, "the disk of the checkpoints is full"),
        fails(Fact("no space left", "No space left"), named=ANY_NODE),
        RESUMABLE,
        Moment.CHECKPOINT,
    ),
    *(
        resumed(
            f"data-{name}",
            strikes.damaged_data(f"a file of the dataset {words}", damage),
            stops(DATA, None, 2),
            MNIST,
            Moment.BEFORE,
            runtimes,
            environment=environment,
        )
        for name, words, damage, runtimes, environment in (
            (
                "removed",
                "is missing and cannot be downloaded",
                strikes.remove,
                (LOCAL, DOCKER),
                dict.fromkeys(("https_proxy", "HTTPS_PROXY"), "http://127.0.0.1:9"),
            ),
            ("damaged", "is damaged", strikes.truncate, (LOCAL, DOCKER), {}),
            ("unreadable", "cannot be read by the containers' user", strikes.forbid_others, (DOCKER,), {}),
        )
    ),
    *(
        Case(
            f"checkpoint-{name}",
            strikes.damaged_checkpoint(words, damage),
            ends_ok(named=NODE, cause=Fact("why it was skipped", pattern)),
            RESUMABLE,
            Moment.BEFORE,
            (LOCAL, DOCKER) if damage is not strikes.forbid else (DOCKER,),  # root reads any file
            earlier=Earlier.KILLED,
        )
        for name, words, damage, pattern in DAMAGED
    ),
    *(
        local(name, Fault(words, strike), ends_ok(), BRIEF, Moment.BEFORE, earlier=Earlier.FINISHED)
        for name, words, strike in (
            ("result-damaged", "the result of a finished run is damaged", strikes.damaged_result),
            ("record-damaged", "the record of the sweep is damaged", strikes.damaged_record),
        )
    ),
    local(
        "events-damaged",
        Fault("a rank writes something else than an event", strikes.damage_events),
        fails(Fact("its events are damaged", "damaged")),
        sample=(LOCAL,),
    ),
    Case(
        "events-removed",
        Fault("the file of a rank's events is removed", strikes.remove_events),
        fails(Fact("its events are damaged", r"rank-\d.jsonl")),
    ),
)

ORCHESTRATOR = (
    *(
        resumed(
            f"orchestrator-{number.name.lower()}",
            signal_orchestrator(number, f"the orchestrator gets {number.name}{origin}"),
            stops(None, None, 130),
            RESUMABLE,
            Moment.CHECKPOINT,
            sample=(LOCAL,) if number is SIGINT else (),
        )
        for number, origin in ((SIGINT, " (Ctrl-C)"), (SIGTERM, ""), (SIGHUP, " (the terminal is closed)"))
    ),
    resumed("orchestrator-sigkill", END[SIGKILL], KILLED_COMMAND, RESUMABLE),
    resumed("orchestrator-at-start", END[SIGKILL], KILLED_COMMAND, short(), Moment.START),
    resumed("orchestrator-mpi", END[SIGKILL], KILLED_COMMAND, short(MPI)),
    resumed(
        "orchestrator-and-rank",
        Fault("a rank and the orchestrator get SIGKILL at once", strikes.kill_with_orchestrator),
        KILLED_COMMAND,
        RESUMABLE,
    ),
    AND_REAPER,
)

KILLED_MACHINE = "all processes of a node get SIGKILL"
ON_SLURM = (
    CONNECTING,
    KILL_EPOCH,
    KILL_MPI,
    THEN_RESUME,
    Case(
        "slurmstepd",
        slurm_strikes.lost("the slurmstepd of a rank gets SIGKILL", slurm_strikes.slurmstepd),
        fails(Fact("its slurmstepd is gone", "slurmstepd"), 60.0),
    ),
    *(
        Case(
            f"{find.__name__}-restarted",
            slurm_strikes.restarted(f"{what} gets SIGKILL, and is started again", find),
            ends_ok(120.0),
            short(epochs=epochs),
        )
        for find, what, epochs in (
            (slurm_strikes.slurmd, "the slurmd of a node", 300),
            (slurm_strikes.slurmctld, "slurmctld", 2000),
            (slurm_strikes.munged, "munged", 2000),
        )
    ),
    Case(
        "slurmd",
        slurm_strikes.lost("the slurmd of a node gets SIGKILL", slurm_strikes.slurmd),
        fails(NODE_FAILURE, 150.0, named=None),
    ),
    Case(
        "machine",
        slurm_strikes.lost(KILLED_MACHINE, slurm_strikes.machine),
        fails(Fact("killed, or node failure", "SIGKILL|node failure"), 90.0, named=None),
    ),
    Case(
        "suspend-node",
        Fault("all processes of a node are suspended", slurm_strikes.suspend, repair=slurm_strikes.resume),
        fails(NODE_FAILURE, 150.0, named=None),
    ),
    Case(
        "machine-requeued",
        slurm_strikes.requeued(KILLED_MACHINE, slurm_strikes.kill(slurm_strikes.machine)),
        ends_ok(240.0, cause=REQUEUED),
        REQUEUEABLE,
        Moment.CHECKPOINT,
    ),
    Case(
        "preempted",
        Fault("another job preempts the run", slurm_strikes.preempt),
        fails(Fact("preemption", "preempted"), 60.0, named=None),
    ),
    Case(
        "preempted-requeued",
        slurm_strikes.requeued("another job preempts the run", slurm_strikes.preempt),
        ends_ok(240.0, cause=REQUEUED),
        REQUEUEABLE,
        Moment.CHECKPOINT,
    ),
)

SWARM_CONTAINER = replace(KILLED_CONTAINER, strike=swarm_strikes.kill_containers("node"))
elsewhere = partial(Case, sweep=swarm_strikes.ELSEWHERE)
ON_SWARM = (
    CONNECTING,
    KILL_EPOCH,
    KILL_MPI,
    KILL_RPC,
    Case("agent", KILLED_AGENT, fails(None, named=ANY_NODE)),
    Case("container-at-start", SWARM_CONTAINER, fails(None, 30.0), moment=Moment.START),
    Case("container", SWARM_CONTAINER, fails(KILLED)),
    Case(
        "coordinator",
        replace(KILLED_COORDINATOR, strike=swarm_strikes.kill_containers("coordinator")),
        fails(KILLED, named=COORDINATOR),
    ),
    Case(
        "suspend-node",
        Fault("all processes of a node are suspended", swarm_strikes.suspend_nodes),
        fails(STUCK, 60.0),
    ),
    elsewhere(
        "machine",
        Fault("the machine of a node ends", swarm_strikes.lose, repair=swarm_strikes.repair),
        fails(None, 60.0),
    ),
    elsewhere(
        "cut",
        swarm_strikes.cut("the machine of a node is cut off from the network", None),
        fails(None, 60.0),
    ),
    elsewhere(
        "cut-short", swarm_strikes.cut("the machine of a node is cut off for 3 s", 3.0), ends_ok(), short()
    ),
    elsewhere(
        "manager",
        Fault(
            "the manager's engine gets SIGKILL",
            swarm_strikes.lose_manager,
            repair=swarm_strikes.repair,
            leaves=True,
        ),
        stops(ENGINE, None, 2, 60.0),
        short(),
        again=True,
    ),
    *ended(short()),
    AND_REAPER,
)

repeated = partial(Case, run=REPEATABLE)
ON_LOCAL_RAYLETS = (
    CONNECTING,
    KILL_EPOCH,
    repeated(
        "suspend-node",
        Fault("an actor and its processes are suspended", ray_strikes.suspend(ray_strikes.actor)),
        ends_ok(180.0, named=NODE, cause=REPEATED),
    ),
    repeated(
        "driver",
        kill_process("Ray's driver gets SIGKILL", ray_strikes.DRIVER),
        ends_ok(named=Fact("Ray's driver", "Ray's driver"), cause=REPEATED),
    ),
    repeated(
        "head",
        kill_process("the head gets SIGKILL", ray_strikes.HEAD),
        replace(ends_ok(named=Fact("the head, in the next row", "head of the Ray cluster")), of_next=True),
    ),
    *ended(REPEATABLE),
    repeated(
        "orchestrator-and-driver",
        Fault(
            "the orchestrator and Ray's driver get SIGKILL",
            ray_strikes.kill_orchestrator_and_driver,
            leaves=True,
        ),
        KILLED_COMMAND,
        again=True,
    ),
)
MACHINES: tuple[tuple[str, str, Strike], ...] = (
    ("raylet", "the raylet of a machine gets SIGKILL", ray_strikes.kill(ray_strikes.machine)),
    (
        "suspend-machine",
        "a raylet and its processes are suspended for 75 s",
        ray_strikes.suspend(ray_strikes.machine, ray_strikes.CUT_OFF_S),
    ),
    ("preempted", "a machine is preempted, with 5 s of notice", ray_strikes.preempt),
)
waiting = partial(Case, moment=Moment.PENDING, options=("--cold",))
ON_RAY = (
    *(replace(case, environment=ray_strikes.LOCAL_RAYLETS) for case in ON_LOCAL_RAYLETS),
    repeated(
        "actor",
        Fault("the actor of a node gets SIGKILL", ray_strikes.kill(ray_strikes.actor)),
        ends_ok(named=NODE, cause=REPEATED),
    ),
    *(
        repeated(
            name,
            Fault(words, strike, repair=ray_strikes.repair),
            ends_ok(150.0, named=NODE, cause=REPEATED),
        )
        for name, words, strike in MACHINES
    ),
    waiting(
        "no-room",
        Fault("no machine has the CPUs of a node", strikes.nothing),
        fails(Fact("what is missing", "no room for 2 nodes of 8 CPUs, .* 0 of 2 machines"), named=None),
        {**TRAINING, **WITHOUT_ROOM},
        sweep={"ray": {"wait_s": 5}},
    ),
    waiting(
        "machine-added",
        Fault("a machine with the CPUs is added", ray_strikes.add_machine, repair=ray_strikes.repair),
        ends_ok(),
        short(WITHOUT_ROOM),
    ),
    repeated("cluster-orchestrator-sigkill", END[SIGKILL], KILLED_COMMAND, again=True),
)

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
