"""Flower's simulation with two clients beside a cold run on two nodes. On request: it installs Flower."""

from __future__ import annotations

import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from pathlib import Path

from tests.bench.overhead import overhead
from tests.bench.runs import runs_on

REPEATS = 3
PACKAGE = "flwr[simulation]==1.41.0"
# One round of federated averaging by two clients, which train the model of overhead.py with torch.
SCRIPT = """
import time
import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


class Client(NumPyClient):
    def fit(self, parameters, config):
        net = model()
        net.load_state_dict(dict(zip(net.state_dict(), map(torch.tensor, parameters))))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        images, labels = torch.randn(256, 784), torch.randint(10, (256,))
        start = time.perf_counter()
        for _ in range(2):
            for batch, target in zip(images.split(32), labels.split(32)):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(net(batch), target).backward()
                optimizer.step()
        seconds = time.perf_counter() - start
        return [value.numpy() for value in net.state_dict().values()], 256, {"train_s": seconds}


def client(context: Context):
    return Client().to_client()


def server(context: Context):
    initial = ndarrays_to_parameters([value.numpy() for value in model().state_dict().values()])
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=2,
        min_available_clients=2,
        initial_parameters=initial,
        fit_metrics_aggregation_fn=lambda metrics: {"train_s": max(each["train_s"] for _, each in metrics)},
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=1))


run_simulation(ServerApp(server_fn=server), ClientApp(client_fn=client), num_supernodes=2)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, runs_on("local", cold=True) as execute:
        python = installed(Path(directory))
        script = Path(directory) / "simulation.py"
        script.write_text(SCRIPT)
        flower, cold = [], []
        for _ in range(REPEATS):
            flower.append(seconds(python, script))
            cold.append(overhead(execute, ("all_reduce", "gloo"), 2))
    theirs, ours = statistics.median(flower), statistics.median(cold)
    print(f"two nodes, s, median of {REPEATS}: Flower's simulation {theirs:.2f}, its training included")
    print(f"cold all_reduce over gloo without its training: {ours:.2f}; ratio {ours / theirs:.2f}")


def installed(directory: Path) -> Path:
    """Install Flower in an environment that also sees this one's torch. Returns its Python."""
    venv.create(directory / "venv", with_pip=True)
    python = directory / "venv" / "bin" / "python"
    own = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    (Path(own) / "torch.pth").write_text(sysconfig.get_path("purelib"))
    if subprocess.run([python, "-m", "pip", "install", "-q", PACKAGE]).returncode:
        sys.exit(f"flower: {PACKAGE} cannot be installed")
    return python


def seconds(python: Path, script: Path) -> float:
    """Wall time of one simulation."""
    began = time.perf_counter()
    done = subprocess.run([python, script], capture_output=True, text=True)
    if done.returncode or "Run finished" not in done.stdout + done.stderr:
        sys.exit(f"flower: the simulation failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return time.perf_counter() - began
