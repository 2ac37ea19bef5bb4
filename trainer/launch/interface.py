"""The network interface of the ranks: the one on the route to the first node.

Left to themselves, libraries take the first interface that they find, or the one that the host's own name
resolves to. On a machine with several networks that can be one without a route to the other nodes.
"""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from pathlib import Path

from trainer.launch.environment import first_host
from trainer.launch.launchers import LaunchError
from trainer.spec.run_spec import RunSpec

Address = IPv4Address | IPv6Address
Route = tuple[IPv4Network | IPv6Network, int, str]  # where to, metric, interface

# By topology: the variables that name the interface. Over NCCL ranks use gloo's, too.
VARIABLES: Mapping[str, tuple[str, ...]] = {
    "ddp": ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"),
    "rpc": ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"),
    "mpi": ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"),
}
# Open MPI refuses an interface to use beside one not to use.
EXCLUDING = "OMPI_MCA_btl_tcp_if_exclude"

RTF_UP, RTF_REJECT, RTF_LOCAL = 0x1, 0x200, 0x80000000
RESOLVE_S = 0.5  # between attempts: the name of a pod that starts is not known at once


def interface_variables(spec: RunSpec, env: Mapping[str, str]) -> dict[str, str]:
    """The variables that bind this process's libraries to an interface.

    Returns:
        Those that are not set; none if all are, or if the launcher does not say where the first node is.

    Raises:
        LaunchError: the first node has no address, or no route leads to it.
    """
    missing = [name for name in VARIABLES.get(spec.topology, ()) if not env.get(name)]
    if not missing or env.get(EXCLUDING) or (host := first_host(spec, env)) is None:
        return {}
    address = choose(host, addresses_of(host, spec.timeout_s), one_machine=spec.nodes == 1)
    return dict.fromkeys(missing, interface_to(address, read_routes()))


def addresses_of(host: str, timeout_s: float) -> list[Address]:
    """The addresses of a host, within a time. Raises LaunchError."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            return [ip_address(str(address[0])) for *_, address in found]
        except socket.gaierror as error:
            if time.monotonic() > deadline:
                raise LaunchError(f"the first node, {host}, has no address: {error.strerror}") from None
            time.sleep(RESOLVE_S)


def choose(host: str, addresses: Sequence[Address], one_machine: bool) -> Address:
    """The address under which the other nodes reach the host.

    Debian gives a machine's own name a loopback address. Raises LaunchError if there is no other one,
    unless all ranks are on one machine, or the launcher itself says loopback.
    """
    reachable = [address for address in addresses if not address.is_loopback]
    literal = host == "localhost" or host in map(str, addresses)
    if not reachable and not literal and not one_machine:
        raise LaunchError(
            f"the first node, {host}, is {addresses[0]} on this machine, which others cannot reach; set "
            f"MASTER_ADDR to an address that they can reach, or {VARIABLES['ddp'][0]} to the interface"
        )
    return (reachable or addresses)[0]


def read_routes(directory: Path = Path("/proc/net")) -> list[Route]:
    """The machine's routes. Raises LaunchError if the system does not show them."""
    try:
        ipv4 = (directory / "route").read_text(encoding="ascii")
        ipv6 = directory / "ipv6_route"  # missing where IPv6 is switched off
        return [*ipv4_routes(ipv4), *ipv6_routes(ipv6.read_text(encoding="ascii") if ipv6.exists() else "")]
    except OSError as error:
        names = ", ".join(dict.fromkeys(name for each in VARIABLES.values() for name in each))
        raise LaunchError(f"routes cannot be read ({error}); set the interface yourself: {names}") from None


def ipv4_routes(table: str) -> Iterator[Route]:
    """The routes of /proc/net/route, whose numbers are in the byte order of the machine."""
    for line in table.splitlines()[1:]:
        interface, target, _, flags, _, _, metric, mask, *_ = line.split()
        if _usable(int(flags, 16)):
            network = IPv4Network((_ipv4(target), str(_ipv4(mask))))
            yield network, int(metric), interface


def _ipv4(text: str) -> IPv4Address:
    return IPv4Address(int(text, 16).to_bytes(4, sys.byteorder))


def ipv6_routes(table: str) -> Iterator[Route]:
    """The routes of /proc/net/ipv6_route, without those to the machine itself."""
    for line in table.splitlines():
        target, prefix, _, _, _, metric, _, _, flags, interface = line.split()
        if _usable(int(flags, 16)):
            network = IPv6Network((int(target, 16), int(prefix, 16)))
            yield network, int(metric, 16), interface


def _usable(flags: int) -> bool:
    return bool(flags & RTF_UP) and not flags & (RTF_REJECT | RTF_LOCAL)


def interface_to(address: Address, routes: Sequence[Route], loopback: str = "lo") -> str:
    """The interface on the route to an address: that of the longest prefix, then of the lowest metric.

    The machine's own address is in the network of its interface, which is the one that others reach.

    Raises:
        LaunchError: no route leads to it.
    """
    if isinstance(address, IPv6Address):
        if address.scope_id:
            return address.scope_id
        address = address.ipv4_mapped or address
    if address.is_loopback:
        return loopback
    fitting = [route for route in routes if route[0].version == address.version and address in route[0]]
    if not fitting:
        raise LaunchError(
            f"no route leads to the first node, {address}; set {VARIABLES['ddp'][0]} to the interface"
        )
    return max(fitting, key=lambda route: (route[0].prefixlen, -route[1]))[2]
