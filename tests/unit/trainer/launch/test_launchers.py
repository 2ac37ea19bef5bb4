"""Mistakes in reading launchers: precedence of variables, counts of ranks, hosts, routes, refusals."""

from __future__ import annotations

import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from trainer.core.context import NodeContext
from trainer.launch import interface
from trainer.launch.environment import read_context
from trainer.launch.interface import choose, interface_to, interface_variables, ipv4_routes, ipv6_routes
from trainer.launch.launchers import ALONE, LAUNCHER, LaunchError, expand_nodelist, free_port
from trainer.spec.run_spec import RunSpec

Env = dict[str, str]

MASTER = {"MASTER_ADDR": "node1", "MASTER_PORT": "4000"}
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", **MASTER}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
SLURM = {"SLURM_JOB_ID": "1234567", "SLURM_PROCID": "2", "SLURM_LOCALID": "0"}
SLURM |= {"SLURM_JOB_NODELIST": "login,node[1-3,7],x01", "SLURM_STEP_NODELIST": "node[1-2]"}
SLURM |= {"SLURM_NTASKS": "9", "SLURM_STEP_NUM_TASKS": "4"}  # of the job, and of the step
PMIX = {"PMIX_RANK": "2", "PMIX_NAMESPACE": "slurm.pmix.7.0"}
KUBEFLOW = {"PET_NODE_RANK": "2", "PET_NNODES": "4", "PET_NPROC_PER_NODE": "1"}
KUBEFLOW |= {"PET_MASTER_ADDR": "run-node-0-0.run", "PET_MASTER_PORT": "29400", "JOB_COMPLETION_INDEX": "2"}
SKYPILOT = {"SKYPILOT_NODE_RANK": "2", "SKYPILOT_NUM_NODES": "4", "SKYPILOT_NUM_GPUS_PER_NODE": "0"}
SKYPILOT["SKYPILOT_NODE_IPS"] = "10.0.0.1\n10.0.0.2\n10.0.0.3\n10.0.0.4\n"
KUBERNETES = {"JOB_COMPLETION_INDEX": "2", "NNODES": "4", "MASTER_ADDR": "run-0.run"}
AGENT = {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
TWO_BY_TWO: dict[str, Any] = {"nodes": 2, "processes_per_node": 2}


def run(nodes: int = 4, processes_per_node: int = 1, **fields: Any) -> RunSpec:
    values = {"strategy": "all_reduce", "transport": "gloo", **fields}
    return RunSpec.model_validate({**values, "nodes": nodes, "processes_per_node": processes_per_node})


def read(environment: Env, **fields: Any) -> NodeContext:
    return read_context(run(**fields), environment)


@pytest.mark.parametrize(
    ("environment", "rendezvous"),
    [
        (TORCHRUN, "tcp://node1:4000"),
        ({**OPENMPI, **MASTER}, "tcp://node1:4000"),
        (SLURM, "tcp://node1:24567"),
        (KUBEFLOW, "tcp://run-node-0-0.run:29400"),
        (SKYPILOT, "tcp://10.0.0.1:29500"),
        (KUBERNETES, "tcp://run-0.run:29500"),
        ({**KUBERNETES, "MASTER_ADDR": "fd00::1"}, "tcp://[fd00::1]:29500"),
        ({**SLURM, **TORCHRUN}, "tcp://node1:4000"),
        ({**OPENMPI, **SLURM}, "tcp://node1:24567"),  # the first does not know
        (AGENT, "store://node1:4000/2"),
        ({**AGENT, "TORCHELASTIC_USE_AGENT_STORE": "False"}, "tcp://node1:4000"),
        ({**TORCHRUN, "MASTER_PORT": "65535"}, "tcp://node1:65535"),
        ({**SLURM, **TORCHRUN, "RANK": "1", LAUNCHER: "slurm"}, "tcp://node1:4000"),
        ({**SLURM, "SHARDYARD_RENDEZVOUS": "/live/meet"}, "/live/meet"),
    ],
)
def test_rank_and_rendezvous_of_each_launcher(environment: Env, rendezvous: str) -> None:
    context = read(environment)
    assert (context.rank, context.size, context.local_rank) == (2, 4, 0)
    assert context.rendezvous == rendezvous


def test_ranks_of_mpi() -> None:
    """Variables of torchrun do not count. The ranks of PMIx are counted by Open MPI, and else by Slurm."""
    in_slurm = {**PMIX, **SLURM}
    counted = {**in_slurm, "OMPI_COMM_WORLD_SIZE": "4", "SLURM_STEP_NUM_TASKS": "1"}
    for environment in (OPENMPI, in_slurm, counted):
        context = read({**environment, "RANK": "9", "WORLD_SIZE": "9"}, transport="mpi")
        assert (context.rank, context.size, context.rendezvous) == (2, 4, "")
    for local in ("0", "2"):  # Open MPI numbers the ranks of nodes that are one host across them
        context = read({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_RANK": local}, transport="mpi", **TWO_BY_TWO)
        assert (context.rank, context.local_rank) == (2, 0)


def test_torchrun_on_the_nodes_of_another_launcher() -> None:
    """One pod for each node, in which torchrun starts two ranks."""
    outer = {**KUBEFLOW, "PET_NODE_RANK": "1", "PET_NNODES": "2", "PET_NPROC_PER_NODE": "2"}
    inner = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", **MASTER}
    context = read({**outer, **inner}, **TWO_BY_TWO)
    assert (context.rank, context.local_rank) == (3, 1)
    with pytest.raises(LaunchError, match=r"RANK is 1 .*PET_NODE_RANK is 1 .*SHARDYARD_LAUNCHER"):
        read({**outer, **inner, "RANK": "1"}, **TWO_BY_TWO)
    with pytest.raises(LaunchError, match=r"PET_NODE_RANK is 1 .* 2 ranks; start them with torchrun"):
        read(outer, **TWO_BY_TWO)


def test_one_process_has_all_ranks_of_topology_single() -> None:
    fields = {**TWO_BY_TWO, "transport": "memory"}
    for environment in ({}, {"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, {**SLURM, LAUNCHER: ALONE}):
        context = read(environment, **fields)
        assert (context.rank, context.size, context.local_rank, context.rendezvous) == (0, 4, 0, "")
    with pytest.raises(LaunchError, match="SLURM_STEP_NUM_TASKS is 4, but one process has all ranks"):
        read(SLURM, **fields)


def test_what_shardyard_says() -> None:
    """Also that a rank of a slower node waits for the throttle of its node, and others for its quota."""
    said = {"SHARDYARD_CPU_QUOTA": "1.5", "SHARDYARD_THROTTLED": "/live", "SHARDYARD_REQUEUES": "3"}
    said |= {"SHARDYARD_INCARNATION": "2", "SHARDYARD_LINKED": "node-1,node-2"}
    fields = {**TWO_BY_TWO, "node_speed": [1, 0.5], "timeout_s": 7}
    spec = run(**fields)
    slow = read({**TORCHRUN, **said}, **fields)
    fast = read({**TORCHRUN, **said, "RANK": "1", "LOCAL_RANK": "1"}, **fields)
    assert slow.cpu_quota == spec.throttle_cpus(1) != spec.throttle_cpus(0)
    assert slow.throttle_mark is not None
    assert (fast.cpu_quota, fast.throttle_mark) == (1.5, None)
    assert (fast.requeues, fast.incarnation, fast.timeout_s) == (3, 2, 7)
    assert fast.linked == ("node-1", "node-2")
    assert read({**SKYPILOT, "SKYPILOT_NUM_GPUS_PER_NODE": "1"}, transport="nccl").rank == 2
    with pytest.raises(LaunchError, match="SHARDYARD_CPU_QUOTA is 'all', not a number"):
        read({**TORCHRUN, "SHARDYARD_CPU_QUOTA": "all"})


@pytest.mark.parametrize(
    ("environment", "fields", "message"),
    [
        ({}, {}, "RANK is not set; .*SLURM_PROCID.*JOB_COMPLETION_INDEX"),
        ({**TORCHRUN, "RANK": "x"}, {}, "RANK is 'x', not a whole number"),
        ({**TORCHRUN, "RANK": "4"}, {}, "RANK is 4; allowed: 0 to 3"),
        ({**TORCHRUN, "WORLD_SIZE": "3"}, {}, "WORLD_SIZE is 3, but the run has 4 nodes"),
        # Assigned round-robin to the nodes:
        ({**TORCHRUN, "RANK": "1"}, TWO_BY_TWO, "LOCAL_RANK is 0.* rank 1 .*local rank 1"),
        ({LAUNCHER: "slrm"}, {}, "SHARDYARD_LAUNCHER is 'slrm'; allowed: torchrun, .*kubernetes, none"),
        (PMIX, {}, "OMPI_COMM_WORLD_SIZE or SLURM_STEP_NUM_TASKS or SLURM_NTASKS is not set"),
        ({**SLURM, **OPENMPI, "OMPI_COMM_WORLD_RANK": "0"}, {}, "openmpi.*SLURM_PROCID is 2"),
        ({**KUBEFLOW, "PET_NPROC_PER_NODE": "2"}, {}, "PET_NPROC_PER_NODE is 2, but the run has 4 nodes"),
        (SKYPILOT, {"transport": "nccl"}, "SKYPILOT_NUM_GPUS_PER_NODE is 0"),
        (TORCHRUN, {"strategy": "local_sgd", "on_loss": "continue"}, "SHARDYARD_MEMBERSHIP is not set"),
        (TORCHRUN, {"restarts": 1}, "SHARDYARD_ATTEMPT is not set"),
        # No rendezvous is assumed.
        ({**OPENMPI, "MASTER_ADDR": "a"}, {}, "MASTER_PORT is not set; rank 0 listens there"),
        ({**TORCHRUN, "MASTER_ADDR": "a b"}, {}, "MASTER_ADDR is 'a b'"),
        ({**TORCHRUN, "MASTER_PORT": "0"}, {}, "MASTER_PORT is 0; allowed: 1 to 65535"),
        (OPENMPI, {}, "MASTER_ADDR is not set; it says where rank 0 is"),
        ({**SLURM, "SLURM_STEP_NODELIST": "node[1-"}, {}, r"SLURM_STEP_NODELIST is 'node\[1-'"),
    ],
)
def test_what_is_refused(environment: Env, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        read(environment, **fields)


def test_nodelists() -> None:
    for text, hosts in {
        "node1": "node1",
        "node[1-3,7],x01": "node1 node2 node3 node7 x01",
        "n[008-011]": "n008 n009 n010 n011",
        "n[9-10]": "n9 n10",
        "a,b-[1,3]-ib,c.d": "a b-1-ib b-3-ib c.d",
        "r[1-2]n[1-2]": "r1n1 r1n2 r2n1 r2n2",
    }.items():
        assert [*expand_nodelist(text)] == hosts.split()
    for text in ("", "n[", "n[1-", "n[3-1]", "n[a-b]", "a,,b", "n[1-999999999]", "n 1", "n[1]]"):
        with pytest.raises(ValueError, match="is not a"):
            [*expand_nodelist(text)]


# The interface on the route to the first node

IPV4 = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
eth0\t00000000\t0100A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t0000A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
ib0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
ib1\t0005000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
down0\t0006000A\t00000000\t0000\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""
ANY = "0" * 32
IPV6 = f"""\
fd000000000000010000000000000000 40 {ANY} 00 {ANY} 00000100 00000001 00000000 00000001 ib0
fd000000000000010000000000000005 80 {ANY} 00 {ANY} 00000000 00000002 00000000 80200001 lo
{ANY} 00 {ANY} 00 fe800000000000000000000000000001 0000000f 00000001 00000000 00000003 eth0
{ANY} 00 {ANY} 00 fe800000000000000000000000000001 00000010 00000001 00000000 00000003 wlan0
{ANY} 00 {ANY} 00 {ANY} ffffffff 00000001 00000000 00200200 lo
"""


def routes() -> list[interface.Route]:
    return [*ipv4_routes(IPV4), *ipv6_routes(IPV6)]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.168.0.7", "eth0"),  # the machine's own network
        ("10.0.5.9", "ib1"),  # the longer prefix
        ("10.0.6.9", "ib0"),  # the longer prefix is down
        ("8.8.8.8", "eth0"),  # the default route of the lower metric
        ("fd00:0:0:1::9", "ib0"),
        ("fd00:0:0:1::5", "ib0"),  # this machine: others reach it over ib0
        ("2001:db8::1", "eth0"),  # of the lower metric, in hexadecimal digits
        ("fe80::1%eth3", "eth3"),
        ("::ffff:10.0.5.9", "ib1"),
        ("::1", "lo"),
    ],
)
def test_interface_on_the_route(address: str, expected: str) -> None:
    assert interface_to(ip_address(address), routes()) == expected


def test_no_route_no_address_and_no_table(tmp_path: Path) -> None:
    for address, table in (("8.8.8.8", ""), ("fd00::1", IPV4)):
        with pytest.raises(LaunchError, match=f"{address}; set GLOO_SOCKET_IFNAME"):
            interface_to(ip_address(address), [*ipv4_routes(table)])
    with pytest.raises(LaunchError, match="set the interface yourself: GLOO_SOCKET_IFNAME"):
        interface.read_routes(tmp_path)
    with pytest.raises(LaunchError, match=r"nowhere\.invalid, has no address"):
        interface.addresses_of("nowhere.invalid", timeout_s=0)


def test_a_name_that_is_loopback_on_the_first_node_itself() -> None:
    own, other = ip_address("127.0.1.1"), ip_address("10.0.0.1")
    assert choose("node1", [own, other], one_machine=False) == other
    assert choose("node1", [own], one_machine=True) == choose("localhost", [own], one_machine=False) == own
    with pytest.raises(LaunchError, match=r"node1, is 127\.0\.1\.1 on this machine.*MASTER_ADDR"):
        choose("node1", [own], one_machine=False)


@pytest.mark.parametrize(
    ("transport", "environment", "names"),
    [
        ("gloo", SLURM, ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")),
        ("rpc", SLURM, ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")),
        ("mpi", {**PMIX, **SLURM}, ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include")),
        ("mpi", {**PMIX, **SLURM, "OMPI_MCA_btl_tcp_if_exclude": "eth0"}, ()),
        ("mpi", OPENMPI, ()),  # does not say where rank 0 is
        ("gloo", {**SLURM, "SHARDYARD_RENDEZVOUS": "/live/meet"}, ()),  # the runtime sets the interface
    ],
)
def test_libraries_use_the_interface(
    monkeypatch: pytest.MonkeyPatch, transport: str, environment: Env, names: tuple[str, ...]
) -> None:
    """On a machine with the routes above, on which every name is an address of ib1."""
    monkeypatch.setattr(interface, "read_routes", routes)
    monkeypatch.setattr(interface, "addresses_of", lambda *_: [ip_address("10.0.5.9")])
    found = interface_variables(run(transport=transport), environment)
    assert found == dict.fromkeys(names, "ib1")
    if transport == "gloo":  # the ranks meet where the runtime says
        assert interface_variables(run(restarts=1), environment) == {}


def test_port_in_use_is_left_out() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(range(port, port + 2)) == port + 1
        with pytest.raises(OSError, match="is free"):
            free_port(range(port, port + 1))
