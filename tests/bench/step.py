"""One training step of lenet, batch 128, one thread: our loop, the usual lab loop, and a bare loop.

The three take turns in one process on one core, a few steps at a time. The result is the ratio within a
turn, so that other load on the machine affects all three.
"""

from __future__ import annotations

import io
import os
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import nll_loss
from torch.utils.data import DataLoader

from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.data.datasets.normalise import normalise
from trainer.launch.ranks import connect
from trainer.spec.run_spec import RunSpec
from trainer.training.session import Session
from trainer.training.task import Task

SAMPLES, BATCH = 12_800, 128
TURNS, STEPS = 24, 15

Step = Callable[[], None]


def main() -> None:
    pinned_to_a_core()
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (SAMPLES, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, SAMPLES, dtype=np.uint8)
    with tempfile.TemporaryDirectory() as directory:
        contenders = {
            "lab loop": lab_loop(pixels, labels, Path(directory)),
            "ours": our_loop(pixels, labels, Path(directory)),
            "bare loop, NCHW": bare_loop(torch.contiguous_format),
            "bare loop, channels_last": bare_loop(torch.channels_last),
        }
        turns = measure(contenders)
    best = min(
        ("bare loop, NCHW", "bare loop, channels_last"), key=lambda name: statistics.median(turns[name])
    )
    print(f"lenet, batch {BATCH}, one thread, {TURNS} turns of {STEPS} steps, milliseconds per step")
    for name, times in turns.items():
        middle, low, high = (1e3 * value for value in (statistics.median(times), min(times), max(times)))
        print(f"  {name:26} {middle:6.2f}   ({low:.2f} … {high:.2f})")
    print(f"  lab loop / ours            {ratio(turns['lab loop'], turns['ours'])}   target at least 1.8")
    print(f"  ours / best bare loop      {ratio(turns['ours'], turns[best])}   target at most 1.05")


def pinned_to_a_core() -> None:
    """Compute with one thread, pinned to one core where the system supports it."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def measure(contenders: dict[str, Step]) -> dict[str, list[float]]:
    """Seconds per step: one value per turn, by contender."""
    turns: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-2, TURNS):  # the first two turns warm up
        for name, step in contenders.items():
            started = time.perf_counter()
            for _ in range(STEPS):
                step()
            if turn >= 0:
                turns[name].append((time.perf_counter() - started) / STEPS)
    return turns


def ratio(numerator: list[float], denominator: list[float]) -> str:
    """Median of the turns' ratios, with their quartiles."""
    low, middle, high = statistics.quantiles(
        [a / b for a, b in zip(numerator, denominator, strict=True)], n=4
    )
    return f"{middle:6.2f}   ({low:.2f} … {high:.2f})"


def network() -> nn.Sequential:
    """lenet with torch's dropout."""
    return nn.Sequential(
        *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(10, 30, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(0.5), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(120, 60), nn.ReLU(), nn.Linear(60, 10), nn.LogSoftmax(1)),
    )


def lab_loop(pixels: np.ndarray, labels: np.ndarray, directory: Path) -> Step:
    """The usual lab code: torchvision's MNIST, a PIL image per sample, a DataLoader."""
    raw = directory / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for split in ("train", "t10k"):
        (raw / f"{split}-images-idx3-ubyte").write_bytes(
            struct.pack(">4i", 2051, *pixels.shape) + pixels.tobytes()
        )
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2i", 2049, len(labels)) + labels.tobytes()
        )
    from trainer.data.augmentations.torchvision_import import torchvision

    datasets, transforms = torchvision.datasets, torchvision.transforms
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    loader = DataLoader(datasets.MNIST(directory, transform=transform), batch_size=BATCH, shuffle=True)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        while True:
            yield from loader

    endless = batches()

    def step() -> None:
        images, targets = next(endless)
        optimizer.zero_grad()
        nll_loss(model(images), targets).backward()
        optimizer.step()

    return step


def our_loop(pixels: np.ndarray, labels: np.ndarray, directory: Path) -> Step:
    """Our training loop as in a run: data loader, clock, progress events."""
    spec = RunSpec.model_validate({"strategy": "serial", "lr": 0.01, "batch_size": BATCH})
    task = Task(spec, directory)
    split = (pixels[:, None], labels.astype(np.int64))
    task.data = normalise(split, split, 10)
    context = NodeContext(0, 1, "memory", directory)
    events = EventWriter(spec.key, 0, directory, io.StringIO())
    session = Session(context, task, events, connect(context, spec.threads))
    replica = session.replica()
    session.start(replica)

    def batches() -> Iterator[None]:
        for epoch in count(1):
            for batch in session.batches(epoch):
                replica.backward(batch)
                replica.step()
                yield

    endless = batches()
    return lambda: next(endless)


def bare_loop(memory_format: torch.memory_format) -> Step:
    """The lower bound: the same network on one constant batch."""
    model = network().to(memory_format=memory_format)
    images = torch.randn(BATCH, 1, 28, 28).contiguous(memory_format=memory_format)
    targets = torch.randint(0, 10, (BATCH,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        nll_loss(model(images), targets).backward()
        optimizer.step()

    return step
