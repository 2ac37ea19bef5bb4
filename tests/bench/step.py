"""One training step of lenet, batch 128, one thread: our loop, the usual lab loop, and a bare loop.

They take turns in one process on one core, a few steps at a time.
"""

from __future__ import annotations

import io
import struct
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn
from torch.nn.functional import nll_loss
from torch.utils.data import DataLoader

from tests.bench.measuring import Call, in_turns, pinned_to_a_core, ratio, spread
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.data.datasets.normalise import normalise
from trainer.launch.ranks import connect
from trainer.spec.run_spec import RunSpec
from trainer.training.session import Session
from trainer.training.task import Task

SAMPLES, BATCH = 12_800, 128
TURNS, STEPS = 24, 15
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def main() -> None:
    pinned_to_a_core()
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (SAMPLES, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, SAMPLES, dtype=np.uint8)
    with tempfile.TemporaryDirectory() as directory:
        contenders = {
            "lab loop": plain_loop(lab_batches(pixels, labels, Path(directory))),
            "ours": our_loop(pixels, labels, Path(directory)),
            "bare loop, NCHW": bare_loop(torch.contiguous_format),
            "bare loop, channels_last": bare_loop(torch.channels_last),
        }
        turns = in_turns(contenders, TURNS, STEPS, warm_up=2)
    best = min([name for name in turns if "bare" in name], key=lambda name: median(turns[name]))
    print(f"lenet, batch {BATCH}, one thread, {TURNS} turns of {STEPS} steps, milliseconds per step")
    for name, times in turns.items():
        print(f"  {name:26} {spread([1e3 * each for each in times])}")
    print(f"  lab loop / ours            {ratio(turns['lab loop'], turns['ours'])}   target at least 1.8")
    print(f"  ours / best bare loop      {ratio(turns['ours'], turns[best])}   target at most 1.05")


def plain_loop(batches: Batches, memory_format: torch.memory_format = torch.contiguous_format) -> Call:
    """Steps of lenet with torch alone."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU()),
        *(nn.Conv2d(10, 30, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Dropout(0.5), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(120, 60), nn.ReLU(), nn.Linear(60, 10), nn.LogSoftmax(1)),
    ).to(memory_format=memory_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        images, targets = next(batches)
        optimizer.zero_grad()
        nll_loss(model(images), targets).backward()
        optimizer.step()

    return step


def lab_batches(pixels: np.ndarray, labels: np.ndarray, directory: Path) -> Batches:
    """The usual lab code: torchvision's MNIST, a PIL image per sample, a DataLoader."""
    from trainer.core.torchvision_import import torchvision

    raw = directory / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for split in ("train", "t10k"):
        images = struct.pack(">4i", 2051, *pixels.shape) + pixels.tobytes()
        (raw / f"{split}-images-idx3-ubyte").write_bytes(images)
        classes = struct.pack(">2i", 2049, len(labels)) + labels.tobytes()
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(classes)
    datasets, transforms = torchvision.datasets, torchvision.transforms
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    loader = DataLoader(datasets.MNIST(directory, transform=transform), batch_size=BATCH, shuffle=True)
    while True:
        yield from loader


def our_loop(pixels: np.ndarray, labels: np.ndarray, directory: Path) -> Call:
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

    def steps() -> Iterator[None]:
        for epoch in count(1):
            for batch in session.batches(epoch):
                replica.backward(batch)
                replica.step()
                yield

    endless = steps()
    return lambda: next(endless)


def bare_loop(memory_format: torch.memory_format) -> Call:
    """The lower bound: the same network on one constant batch."""
    images = torch.randn(BATCH, 1, 28, 28).contiguous(memory_format=memory_format)
    targets = torch.randint(0, 10, (BATCH,))
    return plain_loop(iter(lambda: (images, targets), None), memory_format)
