"""What it costs to compare steps of plain torch with those of a run, for models of others."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

import torch

from trainer.component_trials import written
from trainer.spec.run_spec import RunSpec
from trainer.user_components import model
from trainer.user_components.source import CODE, TORCHVISION, ImportFailure, Source

CLASSES = 10
SMALL, MIDDLE, LARGE = (3, 32, 32), (3, 96, 96), (3, 224, 224)
# Models of torchvision, with their parameters and the images that they take.
MODELS: list[tuple[str, dict[str, Any], tuple[int, int, int]]] = [
    ("resnet18", {}, SMALL),
    ("resnet18", {}, LARGE),
    ("resnet50", {}, SMALL),
    ("resnet50", {}, LARGE),
    ("wide_resnet50_2", {}, SMALL),
    ("resnext50_32x4d", {}, SMALL),
    ("mobilenet_v2", {}, SMALL),
    ("mobilenet_v3_small", {}, SMALL),
    ("shufflenet_v2_x1_0", {}, SMALL),
    ("squeezenet1_1", {}, SMALL),
    ("efficientnet_b0", {}, SMALL),
    ("mnasnet1_0", {}, SMALL),
    ("regnet_y_400mf", {}, SMALL),
    ("densenet121", {}, SMALL),
    ("vgg11", {}, SMALL),
    ("vgg11_bn", {}, SMALL),
    ("alexnet", {}, MIDDLE),
    ("googlenet", {"aux_logits": False}, SMALL),
    ("googlenet", {}, SMALL),
    ("convnext_tiny", {}, SMALL),
    ("swin_t", {}, SMALL),
    ("maxvit_t", {}, LARGE),
    ("vit_b_32", {}, LARGE),
]


def main() -> None:
    """Print for each model what was compared, and the CPU seconds of that and of finding its facts."""
    os.environ[CODE] = ""
    print(f"{'model':26} {'images':>8} {'facts':>8} {'compared':>9}")
    for name, parameters, shape in MODELS:
        receiver, sender = get_context("fork").Pipe(duplex=False)
        process = get_context("fork").Process(target=_compare, args=(sender, name, parameters, shape))
        process.start()
        sender.close()
        try:
            line = receiver.recv()
        except EOFError:
            process.join()
            line = f"ended with {process.exitcode}"
        process.join()
        print(f"{name:26} {shape[1]:>4}×{shape[2]:<3} {line}", flush=True)


def _compare(
    sender: Connection, name: str, parameters: dict[str, Any], shape: tuple[int, int, int]
) -> None:
    torch.set_num_threads(1)
    sender.send(" ".join(_columns(name, parameters, shape)))


def _columns(name: str, parameters: dict[str, Any], shape: tuple[int, int, int]) -> Iterator[str]:
    source = Source(code="", folder="/", module=TORCHVISION, attribute=name)
    inputs = torch.randn(17, *shape, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(17) % CLASSES
    try:
        started = time.process_time()
        facts = model.facts(source, parameters, shape, CLASSES, inputs)
        yield f"{time.process_time() - started:6.2f} s"
        form = {"name": name, **parameters, "imported": facts.model_dump(mode="json")}
        channels, height, width = shape
        components = {
            "model": form,
            "dataset": {"name": "synthetic", "channels": channels, "height": height, "width": width},
            "loss": {"name": "cross_entropy", "label_smoothing": 0.0},
            "optimizer": RunSpec.model_fields["optimizer"].default,
        }
        started = time.process_time()
        compared = written.compare(components, inputs, targets)
        yield f"{time.process_time() - started:7.2f} s"
        yield f" {compared}; {'one block' if facts.indivisible else f'{len(facts.blocks)} blocks'}"
    except ImportFailure as error:
        yield f" refused: {error}"
