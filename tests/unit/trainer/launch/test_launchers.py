"""Launchers: rank, size and rendezvous from the variables of each, and what is refused."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from trainer.core.context import NodeContext
from trainer.launch import interface
from trainer.launch.environment import TOPOLOGIES, read_context
from trainer.launch.interface import choose, interface_to, interface_variables, ipv4_routes, ipv6_routes
from trainer.launch.launchers import (
    ALONE,
    LAUNCHER,
    LAUNCHERS,
    STARTED_BY,
    LaunchError,
    expand_nodelist,
    first_of_nodelist,
)
from trainer.spec.run_spec import RunSpec

Env = dict[str, str]

MASTER = {"MASTER_ADDR": "node1", "MASTER_PORT": "4000"}
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", **MASTER}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
SLURM = {
    "SLURM_JOB_ID": "1234567",
    "SLURM_JOB_NODELIST": "login,node[1-3,7],x01",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
}
PMIX = {"PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.7.0"}
KUBEFLOW = {
    "PET_NODE_RANK": "2",
    "PET_NNODES": "4",
    "PET_NPROC_PER_NODE": "1",
    "PET_MASTER_ADDR": "run-node-0-0.run",
    "PET_MASTER_PORT": "29400",
    "JOB_COMPLETION_INDEX": "2",
}
SKYPILOT = {
    "SKYPILOT_NODE_RANK": "2",
    "SKYPILOT_NUM_NODES": "4",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3\n10.0.0.4\n",
    "SKYPILOT_NUM_GPUS_PER_NODE": "0",
}
KUBERNETES = {"JOB_COMPLETION_INDEX": "2", "NNODES": "4", "MASTER_ADDR": "run-0.run"}


def run(nodes: int = 4, processes_per_node: int = 1, **fields: Any) -> RunSpec:
    values = {"strategy": "all_reduce", "transport": "gloo", **fields}
    return RunSpec.model_validate({**values, "nodes": nodes, "processes_per_node": processes_per_node})


def read(environment: Env, **fields: Any) -> NodeContext:
    return read_context(run(**fields), environment)


# Rank 2 of 4


@pytest.mark.parametrize(
    ("environment", "rendezvous"),
    [
        pytest.param(TORCHRUN, "tcp://node1:4000", id="torchrun"),
        pytest.param({**OPENMPI, **MASTER}, "tcp://node1:4000", id="openmpi"),
        pytest.param(SLURM, "tcp://node1:24567", id="slurm"),
        pytest.param({**SLURM, **MASTER}, "tcp://node1:4000", id="slurm and an address"),
        pytest.param({**SLURM, **PMIX}, "tcp://node1:24567", id="pmix"),
        pytest.param(KUBEFLOW, "tcp://run-node-0-0.run:29400", id="kubeflow"),
        pytest.param(SKYPILOT, "tcp://10.0.0.1:29500", id="skypilot"),
        pytest.param(KUBERNETES, "tcp://run-0.run:29500", id="kubernetes"),
        pytest.param({**KUBERNETES, "MASTER_ADDR": "fd00::1"}, "tcp://[fd00::1]:29500", id="ipv6"),
    ],
)
@pytest.mark.parametrize("transport", ["gloo", "rpc"])
def test_rank_and_rendezvous_of_each_launcher(environment: Env, rendezvous: str, transport: str) -> None:
    context = read(environment, transport=transport)
    assert (context.rank, context.size, context.local_rank) == (2, 4, 0)
    assert context.rendezvous == rendezvous


def test_every_launcher_is_tested() -> None:
    named = {"torchrun", "openmpi", "slurm", "pmix", "kubeflow", "skypilot", "kubernetes"}
    assert named == LAUNCHERS.keys()


def test_shardyard_s_own_rendezvous_counts_first() -> None:
    assert read({**SLURM, "SHARDYARD_RENDEZVOUS": "/live/rendezvous"}).rendezvous == "/live/rendezvous"


def test_ranks_of_a_node() -> None:
    environment = {**SLURM, "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
    context = read(environment, nodes=2, processes_per_node=2)
    assert (context.rank, context.size, context.local_rank) == (3, 4, 1)


def test_ranks_of_mpi() -> None:
    for environment in (OPENMPI, {**PMIX, **SLURM}):
        context = read(environment, transport="mpi")
        assert (context.rank, context.size, context.rendezvous) == (2, 4, "")


# Which launcher


def test_a_named_launcher_counts_alone() -> None:
    inside = {**SLURM, "RANK": "1", "WORLD_SIZE": "4", **MASTER}
    assert read({**inside, LAUNCHER: "torchrun"}).rank == 1
    assert read({**inside, LAUNCHER: "slurm"}).rank == 2


def test_launchers_that_agree() -> None:
    assert read({**SLURM, **TORCHRUN}).rendezvous == "tcp://node1:4000"
    # Open MPI does not say where rank 0 is, Slurm does.
    assert read({**OPENMPI, **SLURM}).rendezvous == "tcp://node1:24567"


def test_torchrun_on_the_nodes_of_another_launcher() -> None:
    """One pod for each node, in which torchrun starts two ranks."""
    outer = {**KUBEFLOW, "PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2"}
    inner = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", **MASTER}
    context = read({**outer, **inner}, nodes=2, processes_per_node=2)
    assert (context.rank, context.local_rank) == (3, 1)
    with pytest.raises(LaunchError, match=r"RANK is 1 .*PET_NODE_RANK is 1 .*SHARDYARD_LAUNCHER"):
        read({**outer, **inner, "RANK": "1"}, nodes=2, processes_per_node=2)
    with pytest.raises(LaunchError, match=r"PET_NODE_RANK is 1 .* 2 ranks; start them with torchrun"):
        read(outer, nodes=2, processes_per_node=2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"strategy": "local_sgd", "on_loss": "continue"}, "SHARDYARD_MEMBERSHIP is not set"),
        ({"restarts": 1}, "SHARDYARD_ATTEMPT is not set"),
    ],
)
def test_runs_whose_ranks_must_be_watched(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        read(TORCHRUN, **fields)


def test_torchrun_s_agent_serves_the_store() -> None:
    agent = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert read(agent).rendezvous == "store://node1:4000/2"
    assert read({**agent, "TORCHELASTIC_USE_AGENT_STORE": "False"}).rendezvous == "tcp://node1:4000"


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_runtimes_name_their_launcher(topology: str) -> None:
    assert STARTED_BY[topology] in {*LAUNCHERS, ALONE}


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "RANK is not set; .*SLURM_PROCID.*JOB_COMPLETION_INDEX"),
        ({LAUNCHER: "slurm", **TORCHRUN}, "SLURM_PROCID is not set"),
        (
            {LAUNCHER: "slrm", **SLURM},
            "SHARDYARD_LAUNCHER is 'slrm'; allowed: torchrun, .*kubernetes, none",
        ),
        ({LAUNCHER: ALONE, **SLURM}, "RANK is not set"),
        ({"SLURM_PROCID": "2"}, "SLURM_STEP_NUM_TASKS or SLURM_NTASKS is not set"),
        (PMIX, "OMPI_COMM_WORLD_SIZE or SLURM_STEP_NUM_TASKS or SLURM_NTASKS is not set"),
        ({"JOB_COMPLETION_INDEX": "2"}, "NNODES is not set"),
        ({**SLURM, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, "openmpi.*SLURM_PROCID is 2"),
        ({**SLURM, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, "SLURM_NTASKS is 1, but the run has 4 nodes"),
        ({**SLURM, "SLURM_PROCID": "4"}, "SLURM_PROCID is 4; allowed: 0 to 3"),
        ({**KUBEFLOW, "PET_NPROC_PER_NODE": "2"}, "PET_NPROC_PER_NODE is 2, but the run has 4 nodes"),
        ({**KUBEFLOW, "PET_NPROC_PER_NODE": "auto"}, "PET_NPROC_PER_NODE is 'auto', not a whole number"),
        ({**KUBEFLOW, "PET_NNODES": "1:4"}, "PET_NNODES is '1:4', not a whole number"),
    ],
)
def test_what_is_refused(environment: Env, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        read(environment)


@pytest.mark.parametrize(
    ("environment", "missing", "message"),
    [
        (TORCHRUN, "MASTER_ADDR", "MASTER_ADDR is not set"),
        (TORCHRUN, "MASTER_PORT", "MASTER_PORT is not set"),
        (OPENMPI, "", "MASTER_ADDR is not set; it says where rank 0 is"),
        (SLURM, "SLURM_JOB_ID", "MASTER_PORT or SLURM_JOB_ID is not set"),
        (KUBEFLOW, "PET_MASTER_ADDR", "PET_MASTER_ADDR is not set"),
        (SKYPILOT, "SKYPILOT_NODE_IPS", "SKYPILOT_NODE_IPS is not set"),
        (KUBERNETES, "MASTER_ADDR", "MASTER_ADDR is not set"),
    ],
)
def test_no_rendezvous_is_assumed(environment: Env, missing: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        read({name: value for name, value in environment.items() if name != missing})


@pytest.mark.parametrize(
    ("name", "value"),
    [("MASTER_ADDR", "a b"), ("MASTER_PORT", "0"), ("MASTER_PORT", "70000"), ("MASTER_PORT", "http")],
)
def test_an_address_that_is_none(name: str, value: str) -> None:
    with pytest.raises(LaunchError, match=name):
        read({**TORCHRUN, name: value})


def test_gpus_of_skypilot() -> None:
    spec = run(transport="nccl")
    with pytest.raises(LaunchError, match="SKYPILOT_NUM_GPUS_PER_NODE is 0"):
        read_context(spec, SKYPILOT)
    assert read_context(spec, {**SKYPILOT, "SKYPILOT_NUM_GPUS_PER_NODE": "8"}).rank == 2


def test_a_launcher_starts_one_process_of_topology_single() -> None:
    fields: dict[str, Any] = {"transport": "memory", "nodes": 4}
    assert read({}, **fields).rank == 0
    assert read({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, **fields).rank == 0
    assert read({**SLURM, LAUNCHER: ALONE}, **fields).rank == 0
    with pytest.raises(LaunchError, match="SLURM_NTASKS is 4, but one process has all ranks"):
        read(SLURM, **fields)


# Nodelists


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", "node1"),
        ("node[1-3,7],x01", "node1 node2 node3 node7 x01"),
        ("n[008-011]", "n008 n009 n010 n011"),
        ("a,b-[1,3]-ib,c.d", "a b-1-ib b-3-ib c.d"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("10.0.0.[1-2]", "10.0.0.1 10.0.0.2"),
    ],
)
def test_nodelist(text: str, hosts: str) -> None:
    assert [*expand_nodelist(text)] == hosts.split()
    assert first_of_nodelist(text) == hosts.split()[0]


@pytest.mark.parametrize(
    "text", ["", "n[", "n[1-", "n[3-1]", "n[a-b]", "a,,b", "n[1-999999999]", "n 1", "n[1]]"]
)
def test_invalid_nodelist(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        [*expand_nodelist(text)]


def test_an_invalid_nodelist_is_named() -> None:
    with pytest.raises(LaunchError, match=r"SLURM_STEP_NODELIST is 'node\[1-'"):
        read({**SLURM, "SLURM_STEP_NODELIST": "node[1-"})


# The interface on the route to the first node

IPV4 = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t0000A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
ib0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
ib1\t0005000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
down0\t0006000A\t00000000\t0000\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
IPV6 = """\
fd000000000000010000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001      ib0
fd000000000000010000000000000005 80 00000000000000000000000000000000 00 00000000000000000000000000000000 00000000 00000002 00000000 80200001       lo
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
"""  # noqa: E501
ROUTES = [*ipv4_routes(IPV4), *ipv6_routes(IPV6)]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.168.0.7", "eth0"),  # the machine's own network
        ("10.1.2.3", "ib0"),
        ("10.0.5.9", "ib1"),  # the longer prefix
        ("10.0.6.9", "ib0"),  # the longer prefix is down
        ("8.8.8.8", "eth0"),  # the default route of the lower metric
        ("127.0.0.1", "lo"),
        ("fd00:0:0:1::9", "ib0"),
        ("fd00:0:0:1::5", "ib0"),  # this machine: others reach it over ib0
        ("2001:db8::1", "eth0"),
        ("fe80::1%eth3", "eth3"),
        ("::ffff:10.0.5.9", "ib1"),
        ("::1", "lo"),
    ],
)
def test_interface_on_the_route(address: str, expected: str) -> None:
    assert interface_to(ip_address(address), ROUTES) == expected


@pytest.mark.parametrize(("address", "table"), [("8.8.8.8", ""), ("fd00::1", IPV4)])
def test_no_route(address: str, table: str) -> None:
    with pytest.raises(LaunchError, match=f"{address}; set GLOO_SOCKET_IFNAME"):
        interface_to(ip_address(address), [*ipv4_routes(table)])


def test_a_name_that_is_loopback_on_the_first_node_itself() -> None:
    own, other = ip_address("127.0.1.1"), ip_address("10.0.0.1")
    assert choose("node1", [own, other], one_machine=False) == other
    assert choose("node1", [own], one_machine=True) == own
    for host in ("localhost", "127.0.1.1"):
        assert choose(host, [own], one_machine=False) == own
    with pytest.raises(LaunchError, match=r"node1, is 127\.0\.1\.1 on this machine.*MASTER_ADDR"):
        choose("node1", [own], one_machine=False)


@pytest.fixture
def routed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with the routes above, on which every name is an address of ib1."""
    monkeypatch.setattr(interface, "read_routes", lambda: ROUTES)
    monkeypatch.setattr(interface, "addresses_of", lambda *_: [ip_address("10.0.5.9")])


@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize(
    ("transport", "environment", "names"),
    [
        ("gloo", SLURM, {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}),
        ("rpc", SLURM, {"GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}),
        ("mpi", {**PMIX, **SLURM}, {"OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"}),
    ],
)
def test_libraries_use_the_interface(transport: str, environment: Env, names: set[str]) -> None:
    spec = run(transport=transport)
    assert interface_variables(spec, environment) == dict.fromkeys(names, "ib1")
    one = min(names)
    assert interface_variables(spec, {**environment, one: "eth9"}) == dict.fromkeys(names - {one}, "ib1")


@pytest.mark.usefixtures("routed")
@pytest.mark.parametrize(
    ("transport", "environment"),
    [
        ("gloo", {**SLURM, "SHARDYARD_RENDEZVOUS": "/live/rendezvous"}),  # the runtime sets the interface
        ("mpi", OPENMPI),  # does not say where rank 0 is
        ("mpi", {**PMIX, **SLURM, "OMPI_MCA_btl_tcp_if_exclude": "eth0"}),
        ("memory", {}),
    ],
)
def test_an_interface_is_left_alone(transport: str, environment: Env) -> None:
    assert interface_variables(run(transport=transport), environment) == {}


def test_routes_of_this_machine_are_read() -> None:
    try:
        routes = interface.read_routes()
    except LaunchError:
        pytest.skip("the system does not show its routes")
    assert all(name for *_, name in routes)
    assert interface_to(ip_address("127.0.0.1"), routes) == "lo"


def test_a_system_without_routes(tmp_path: Any) -> None:
    with pytest.raises(LaunchError, match="set the interface yourself: GLOO_SOCKET_IFNAME"):
        interface.read_routes(tmp_path)


def test_an_unknown_host() -> None:
    with pytest.raises(LaunchError, match=r"nowhere\.invalid, has no address"):
        interface.addresses_of("nowhere.invalid", timeout_s=0)
