"""Flower's simulation beside ours. On request: it installs Flower.

With two clients beside a cold run on two nodes, and with 1,000 beside virtual nodes.
"""

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
from trainer.spec.run_spec import RunSpec

REPEATS = 3
PACKAGE = "flwr[simulation]==1.42.0"
CLIENTS, SAMPLES, BATCH = 1_000, 60, 10  # samples of each client
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
# One round of all clients: an epoch of LeNet-5 on images of 28 × 28, and the average of their weights.
MANY = """
import torch
from torch import nn
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation


def model():
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 10), nn.LogSoftmax(1),
    )


class Client(NumPyClient):
    def fit(self, parameters, config):
        torch.set_num_threads(1)
        net = model()
        net.load_state_dict(dict(zip(net.state_dict(), map(torch.tensor, parameters))))
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        images, labels = torch.randn(SAMPLES, 1, 28, 28), torch.randint(10, (SAMPLES,))
        for batch, target in zip(images.split(BATCH), labels.split(BATCH)):
            optimizer.zero_grad()
            nn.functional.nll_loss(net(batch), target).backward()
            optimizer.step()
        return [value.numpy() for value in net.state_dict().values()], SAMPLES, {}


def client(context: Context):
    return Client().to_client()


def server(context: Context):
    initial = ndarrays_to_parameters([value.numpy() for value in model().state_dict().values()])
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=CLIENTS,
        min_available_clients=CLIENTS,
        initial_parameters=initial,
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=1))


run_simulation(
    ServerApp(server_fn=server),
    ClientApp(client_fn=client),
    num_supernodes=CLIENTS,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
)
"""


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, runs_on("local", cold=True) as execute:
        python = installed(Path(directory), PACKAGE)
        script = Path(directory) / "simulation.py"
        script.write_text(SCRIPT)
        flower, cold = [], []
        for _ in range(REPEATS):
            flower.append(seconds(python, script))
            cold.append(overhead(execute, ("all_reduce", "gloo"), 2))
        many(Path(directory), python)
    theirs, ours = statistics.median(flower), statistics.median(cold)
    print(f"two nodes, s, median of {REPEATS}: Flower's simulation {theirs:.2f}, its training included")
    print(f"cold all_reduce over gloo without its training: {ours:.2f}; ratio {ours / theirs:.2f}")


def many(directory: Path, python: Path) -> None:
    """Print the wall time of a round of 1,000 clients, beyond that of a few."""
    theirs = []
    for clients in (1, CLIENTS):
        script = directory / f"clients-{clients}.py"
        script.write_text(f"CLIENTS, SAMPLES, BATCH = {clients}, {SAMPLES}, {BATCH}\n{MANY}")
        theirs.append(seconds(python, script))
    with runs_on("virtual", cold=True) as execute:
        ours = [execute(round_of(clients)).wall_s for clients in (2, CLIENTS)]
    print(
        f"a round of {CLIENTS:,} clients, s: Flower's simulation {theirs[1]:.1f}, of which {theirs[0]:.1f} "
        f"with 1 client; virtual nodes {ours[1]:.1f}, of which {ours[0]:.1f} with 2; ratio of the rest "
        f"{(theirs[1] - theirs[0]) / (ours[1] - ours[0]):.1f}"
    )


def round_of(clients: int) -> RunSpec:
    """The same round on virtual nodes, with one average at its end."""
    dataset = {"name": "synthetic", "samples": clients * SAMPLES, "test_samples": 100}
    strategy = {"name": "local_sgd", "local_steps": None}
    fields = {"strategy": strategy, "dataset": dataset, "model": "lenet5", "batch_size": BATCH}
    return RunSpec.model_validate({**fields, "epochs": 1, "nodes": clients, "transport": "gloo"})


def installed(directory: Path, package: str) -> Path:
    """Install a package in an environment that also sees this one's torch. Returns its Python."""
    venv.create(directory / "venv", with_pip=True)
    python = directory / "venv" / "bin" / "python"
    own = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    (Path(own) / "torch.pth").write_text(sysconfig.get_path("purelib"))
    if subprocess.run([python, "-m", "pip", "install", "-q", package]).returncode:
        sys.exit(f"{package} cannot be installed")
    return python


def seconds(python: Path, script: Path) -> float:
    """Wall time of one simulation."""
    began = time.perf_counter()
    done = subprocess.run([python, script], capture_output=True, text=True)
    if done.returncode or "Run finished" not in done.stdout + done.stderr:
        sys.exit(f"flower: the simulation failed:\n{(done.stdout + done.stderr)[-2000:]}")
    return time.perf_counter() - began
