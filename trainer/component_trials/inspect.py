"""Answers requests about users' components. Runs users' code."""

from __future__ import annotations

import base64
import io
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import sha256
from modulefinder import ModuleFinder
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from trainer.component_trials import written
from trainer.component_trials.figures import figures
from trainer.component_trials.messages import FIT, MAX_SAMPLES, MAX_TEXT, TrialAnswer, TrialRequest
from trainer.components.facts import Source
from trainer.components.kind import refuse
from trainer.components.parameters import ParameterFailure, defaults_left_out
from trainer.components.samples import TRIED_SAMPLES, spread
from trainer.core.record import checked, cut, one_line
from trainer.core.user_code import ImportFailure, located
from trainer.data.base import PixelScale
from trainer.models.shapes import noise
from trainer.spec.registries import REGISTRIES, TRANSPORTS
from trainer.user_components import augmentation, dataset, loss, model, optimizer, partitioner, strategy

if TYPE_CHECKING:
    from torch import Tensor

    from trainer.data.base import Dataset
    from trainer.losses.base import Loss
    from trainer.models.base import Model

MAX_LABELS = 100_000  # with which a partitioner is tried
# Where software is installed, which may lie below a user's directory.
NOT_USERS = [Path(__file__).parents[1]]
NOT_USERS += [Path(path) for path in (sys.prefix, sys.base_prefix, *sys.path) if path]


def inspect(request: TrialRequest) -> TrialAnswer:
    """TrialAnswer a request. Call it in a process of its own: it runs users' code."""
    directory = Path(request.directory) if request.directory else None
    try:
        if request.kind == "fit":
            check_fit(request)
            return TrialAnswer()
        return figures(request) if request.run else _component(request)
    except ParameterFailure as error:
        return TrialAnswer.model_validate({"invalid": error.errors, "allowed": error.allowed}, strict=False)
    except (Exception, SystemExit) as error:
        return TrialAnswer(error=cut(one_line(located(error, directory)), MAX_TEXT))


def _component(request: TrialRequest) -> TrialAnswer:
    directory = Path(request.directory)
    opened, samples = OpenedFiles(), io.BytesIO()
    source = Source(code="", folder=request.directory, module=request.module, attribute=request.attribute)
    called = source.load()
    if request.kind == "dataset":
        found: Source = _dataset(request, source, samples)
    else:
        found = _FACTS[request.kind](request, source)
    others = [other for other in (*NOT_USERS, Path(request.data_dir)) if other != directory]
    others = [other for other in others if other.is_relative_to(directory)]
    files = {
        path
        for path in opened.paths | imported_files(directory, request.module)
        if path.is_relative_to(directory) and not any(path.is_relative_to(other) for other in others)
    }
    answer = {
        "facts": found.model_dump(mode="json"),
        "parameters": defaults_left_out(called, request.parameters),
        "files": sorted(str(path.relative_to(directory)) for path in files),
        "module": _installed_digest(called, files),
        "samples": base64.b64encode(samples.getvalue()).decode(),
    }
    try:
        return checked(TrialAnswer, answer, "what a run must know of it")
    except ValueError as error:  # such as a file whose name has control characters
        raise ImportFailure(str(error)) from error


def _installed_digest(called: Any, files: set[Path]) -> str:
    """16 hex digits that identify the sources of an installed component; empty for one of these files.

    They are those of its whole package, but of torch's, whose version an environment states.
    """
    name = getattr(called, "__module__", "")
    origin = getattr(sys.modules.get(name), "__file__", None)
    if not origin or Path(origin) in files:
        return ""
    sources, top = [Path(origin)], sys.modules.get(name.partition(".")[0])
    if top is not None and top.__name__ not in ("torch", "torchvision"):
        sources += [path for place in getattr(top, "__path__", ()) for path in Path(place).rglob("*.py")]
    found = sha256()
    for path in sorted(sources):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def _dataset(request: TrialRequest, source: Source, samples: IO[bytes]) -> Source:
    """The facts of a dataset, of which some samples are written to `samples`."""
    found, data = dataset.facts(source, request.parameters, Path(request.data_dir))
    sample = data.train.inputs[:1].nbytes + data.train.targets[:1].nbytes
    if sample > MAX_SAMPLES:
        raise ImportFailure(
            f"a sample has {sample / 2**20:.0f} MiB; allowed: at most {MAX_SAMPLES >> 20} MiB"
        )
    few = spread(data.train.targets, min(TRIED_SAMPLES, MAX_SAMPLES // max(1, sample)))
    labels = data.train.labels[np.sort(spread(data.train.labels, MAX_LABELS))]
    np.savez(samples, inputs=data.train.inputs[few], targets=data.train.targets[few], labels=labels)
    return found


def _model(request: TrialRequest, source: Source) -> Source:
    on = _resolved(request, "dataset")
    return model.facts(source, request.parameters, on.shape, on.outputs, samples(request)[0])


def _augmentation(request: TrialRequest, source: Source) -> Source:
    inputs, _, _ = samples(request)
    image = inputs.dim() == 4
    ones = np.ones((inputs.shape[1], 1, 1), np.float32) if image else None
    scale = None if ones is None else PixelScale(0 * ones, ones)
    return augmentation.facts(source, request.parameters, inputs, scale)


def _partitioner(request: TrialRequest, source: Source) -> Source:
    return partitioner.facts(source, request.parameters, samples(request)[2], request.parts)


def _strategy(request: TrialRequest, source: Source) -> Source:
    trained = _resolved(request, "model")
    if unknown := set(getattr(source.load(), "transports", ())) - set(TRANSPORTS.entries):
        raise ImportFailure(f"its transports have {unknown.pop()!r}; allowed: {TRANSPORTS.known}")
    return strategy.facts(source, request.parameters, request.ranks, trained, request.batch_size)


_FACTS: Mapping[str, Callable[[TrialRequest, Source], Source]] = {
    "model": _model,
    "loss": lambda request, source: loss.facts(source, request.parameters),
    "optimizer": lambda request, source: optimizer.facts(source, request.parameters),
    "augmentation": _augmentation,
    "partitioner": _partitioner,
    "strategy": _strategy,
}


def check_fit(request: TrialRequest) -> None:
    """Raise ImportFailure unless the components of a run fit together and are trained as written."""
    resolved = {field: _resolved(request, field) for field in FIT}
    names = {field: REGISTRIES[field].name_of(each) for field, each in resolved.items()}
    what = "{model} on {dataset} with the loss {loss} and the optimizer {optimizer}".format(**names)
    inputs, targets, _ = samples(request)
    try:
        _step(resolved["model"], resolved["dataset"], resolved["loss"], inputs, targets)
        written.compare(request.forms, inputs, targets)
    except Exception as error:
        raise ImportFailure(f"{what}: {located(error)}") from error


def _step(trained: Model, on: Dataset, with_loss: Loss, inputs: Tensor, targets: Tensor) -> None:
    """Compute the loss of these samples. Raises ImportFailure, or what users' code raises."""
    import torch

    if reason := trained.validation_error(on.shape):
        raise ImportFailure(reason)
    torch.manual_seed(0)
    blocks = trained.blocks(on.shape, on.outputs, torch.Generator())
    output = torch.nn.Sequential(*(block for _, block in blocks))(inputs)
    few = loss.scores_error(with_loss, output, on.class_count)
    if reason := few or with_loss.output_error(output, targets):
        raise ImportFailure(reason)
    refuse(loss.weights_error(with_loss, targets))
    try:
        value = with_loss.of(output, targets)
    except IndexError as error:
        returned = f"the model returns shape {tuple(output.shape)}"
        classes = (
            f"and the dataset has {on.class_count} classes" if on.class_count > 1 else "and no classes"
        )
        raise IndexError(f"{error}; {returned}, {classes}") from error
    refuse(loss.value_error(value))
    if reason := loss.rounded_error(with_loss, output, targets):
        raise ImportFailure(reason)
    output, half = output.detach(), len(inputs) // 2
    refuse(loss.right_error(with_loss.right(output, targets), len(inputs)))
    if half:
        refuse(loss.mean_error(with_loss, half, output[: 2 * half], targets[: 2 * half]))


def samples(request: TrialRequest) -> tuple[Tensor, Tensor, Any]:
    """Some inputs and targets of the dataset, and labels: noise in its shape unless it is a user's."""
    import torch

    if request.batch:
        with np.load(request.batch) as arrays:
            inputs, targets = (torch.from_numpy(arrays[name]) for name in ("inputs", "targets"))
            return inputs, targets, arrays["labels"]
    on, rng = _resolved(request, "dataset"), np.random.default_rng(0)
    labels = rng.integers(on.class_count, size=min(on.train_samples, MAX_LABELS))
    few = spread(labels, TRIED_SAMPLES)
    generator = torch.Generator().manual_seed(0)
    targets = torch.from_numpy(labels[few])
    if on.target_shape:
        targets = torch.randint(on.outputs, (len(few), *on.target_shape), generator=generator)
    return noise(on, len(few), generator), targets, labels


def _resolved(request: TrialRequest, field: str) -> Any:
    return REGISTRIES[field].parse(request.forms[field])


def imported_files(directory: Path, module: str) -> set[Path]:
    """The files of a directory that a module of it imports anywhere, also inside of functions."""
    finder = ModuleFinder(path=[str(directory)], excludes=["trainer", "shardyard"])
    if module.endswith(".py"):
        finder.run_script(str(directory / module))
    else:
        with suppress(ImportError):  # an installed module
            finder.import_hook(module)
    files = (getattr(found, "__file__", None) for found in finder.modules.values())
    return {Path(file) for file in files if file}


class OpenedFiles:
    """Records which files this process opens, among them those that a component needs."""

    def __init__(self) -> None:
        self._found = set[str | bytes]()
        sys.addaudithook(self._record)

    def _record(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            self._found.add(arguments[0])

    @property
    def paths(self) -> set[Path]:
        """Those that are files, as absolute paths."""
        paths = {Path(os.path.abspath(os.fsdecode(name))) for name in self._found}
        return {path for path in paths if path.is_file()}
