"""The links between containers: what TCP gets of what is requested, and the CPU time of the switch.

Two nodes of one run wait while programs in their containers send to each other. The links are changed as
between the runs of warm containers.
"""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from pathlib import Path

import psutil

from orchestrator.identity import identity
from orchestrator.runtimes.docker.compose import SWITCH
from orchestrator.runtimes.docker.runtime import links_missing
from tests.support.command_line import start_sweep
from tests.support.containers import containers_missing
from tests.support.places import DockerPlace
from tests.support.processes import wait_until
from tests.support.runs import event_files
from trainer.link_switch.control import Setup, Stats
from trainer.spec.link import Links

BANDWIDTHS_MBIT = (10, 100, 1000, None)
LATENCIES_MS = (0, 1, 10)
SECONDS = 3.0  # of sending
PORT = 40_000
RUN = {
    "strategy": {"name": "fault_injection", "work_s": 600},
    "transport": "gloo",
    "nodes": 2,
    "timeout_s": 900,
    "link": {"latency_ms": 0},
}
SERVER = """
import socket, sys
with socket.create_server(("", int(sys.argv[1]))) as server:
    while True:
        client, _ = server.accept()
        with client:
            echo = client.recv(1) == b"e"
            while data := client.recv(2**20):
                if echo:
                    client.sendall(data)
"""
# Prints the median round trip of one byte, in s, the bytes per second of a stream, and its bytes.
CLIENT = """
import json, socket, statistics, sys, time
address = sys.argv[1], int(sys.argv[2])
def connect(mode):
    client = socket.create_connection(address)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(mode)
    return client
with connect(b"e") as client:
    trips = []
    for _ in range(30):
        began = time.perf_counter()
        client.sendall(b"x")
        client.recv(1)
        trips.append(time.perf_counter() - began)
with connect(b"s") as client:
    block, sent, began = bytes(2**18), 0, time.perf_counter()
    while time.perf_counter() - began < float(sys.argv[3]):
        client.sendall(block)
        sent += len(block)
    client.shutdown(socket.SHUT_WR)
    client.recv(1)
    print(json.dumps([statistics.median(trips[5:]), sent / (time.perf_counter() - began), sent]))
"""


def main() -> None:
    if reason := containers_missing() or links_missing():
        print(f"links: skipped, {reason}")
        return
    with tempfile.TemporaryDirectory() as directory:
        out, file = Path(directory) / "out", Path(directory) / "links.yml"
        file.write_text(json.dumps({"name": "links", "base": RUN, "blocks": [{}]}))
        sweep = start_sweep(file, out, "--runtime", "docker")
        try:
            wait_until(lambda: len(event_files(out)) == RUN["nodes"], timeout_s=120)
            measure(DockerPlace(psutil.Process(sweep.pid), identity(sweep.pid), out))
        finally:
            sweep.send_signal(signal.SIGINT)
            sweep.communicate(timeout=60)


def measure(place: DockerPlace) -> None:
    """Print a table of all links."""
    nodes, (switch,) = (
        [place.containers("node", number)[0] for number in (1, 2)],
        place.containers("switch"),
    )
    addresses = [
        network["IPAddress"] for node in nodes for network in node["NetworkSettings"]["Networks"].values()
    ]
    execute(nodes[1]["Id"], "python", "-c", SERVER, str(PORT), detached=True)
    print("  requested                  achieved                       switch")
    print("  Mbit/s   latency ms        Mbit/s      round trip ms      CPU s per s   CPU s per GB")
    for mbit in BANDWIDTHS_MBIT:
        for latency in LATENCIES_MS:
            link = Links.of({"bandwidth_mbit": mbit, "latency_ms": latency})
            setup = Setup(addresses=addresses, nodes=2, seed=0, timeout_s=900.0, link=link)
            execute(switch["Id"], *SWITCH, "setup", setup.model_dump_json())
            before_s = cpu_s(switch["Id"])
            sending = ("python", "-c", CLIENT, addresses[1], str(PORT), str(SECONDS))
            trip_s, bytes_per_s, sent = json.loads(execute(nodes[0]["Id"], *sending))
            used_s = cpu_s(switch["Id"]) - before_s
            print(
                f"  {mbit or 'any':<8} {latency:<16} {bytes_per_s * 8 / 1e6:8.1f} {trip_s * 1e3:14.2f}"
                f" {used_s * bytes_per_s / sent:18.2f} {used_s / sent * 1e9:14.1f}"
            )


def cpu_s(switch: str) -> float:
    return Stats.model_validate_json(execute(switch, *SWITCH, "stats")).cpu_s


def execute(container: str, *command: str, detached: bool = False) -> str:
    """The output of a command in a container."""
    options = ["-d"] if detached else []
    full = ["docker", "exec", *options, container, *command]
    return subprocess.run(full, capture_output=True, text=True, check=True).stdout
