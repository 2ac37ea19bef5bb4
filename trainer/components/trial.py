"""Answers requests about components. Runs users' code: it is used in a process of its own."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from trainer.components import written
from trainer.components.dataset import DatasetKind
from trainer.components.facts import Source
from trainer.components.find import components, kinds, stated_kind
from trainer.components.kind import Few, Kind, On
from trainer.components.loss import fit_error
from trainer.components.messages import FIT, MAX_TEXT, Answer, Found, Place, Request
from trainer.components.needed_files import OpenedFiles, installed_digest
from trainer.components.parameters import ParameterFailure, defaults_left_out
from trainer.components.samples import MAX_LABELS, TRIED_SAMPLES, VECTORS, spread
from trainer.core.record import checked, cut, one_line
from trainer.core.user_code import TORCHVISION, ImportFailure, located
from trainer.data.base import Data, DataError, Dataset
from trainer.models.shapes import noise
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec


class Vectors(Dataset):
    """States samples for models that take vectors. No run can use it."""

    train_samples = property(lambda self: 100)
    shape = property(lambda self: (4,))
    class_count = property(lambda self: 3)

    def load(self, data_dir: Path) -> Data:
        raise DataError("it has no samples")


class DatasetFailure(Exception):
    """The dataset on which a component is tried cannot be used."""


class Trial:
    """Answers requests of one process. It keeps the component that was opened."""

    def __init__(self) -> None:
        self._opened: Kind[Any] | None = None

    def answer(self, body: bytes) -> bytes:
        """The answer to a request, which the process that asks checks."""
        request = Request.model_validate_json(body)
        directory = Path(request.place.directory) if request.place.directory else None
        answers = {
            "find": _find,
            "load": _load,
            "open": self._open,
            "try": self._try,
            "digest": lambda _: Answer(digest=self._kind.digest()),
            "fit": _fit,
        }
        try:
            found = answers.get(request.do, _figures)(request)
        except ParameterFailure as error:
            found = _invalid(error)
        except DatasetFailure as error:
            cause = error.__cause__
            found = _invalid(cause) if isinstance(cause, ParameterFailure) else Answer(error=str(error))
            found = found.model_copy(update={"of_dataset": True})
        except (Exception, SystemExit) as error:
            found = Answer(error=cut(one_line(located(error, directory)), MAX_TEXT))
        return found.model_dump_json(exclude_defaults=True).encode()

    @property
    def _kind(self) -> Kind[Any]:
        if self._opened is None:
            raise ImportFailure("no component is open")
        return self._opened

    def _open(self, request: Request) -> Answer:
        """Open a component whose laws are tried then, on a dataset that it takes."""
        tried, data = _on_data(request)
        self._opened = tried
        first: dict[str, Any] = {}
        for law in tried.laws():
            inputs = () if law.across else tried.first(law)
            plain = inputs if isinstance(inputs, str) else [each.model_dump(mode="json") for each in inputs]
            first[law.name] = plain
        return Answer(first=first, data=data, left_out=tried.left_out() or "")

    def _try(self, request: Request) -> Answer:
        law = next(each for each in self._kind.laws() if each.name == request.law)
        return Answer(
            outcome=self._kind.attempt(law, law.input.model_validate(request.given, strict=False))
        )


def _invalid(error: ParameterFailure) -> Answer:
    return Answer.model_validate({"invalid": error.errors, "allowed": error.allowed}, strict=False)


def _registered(name: str, **parameters: Any) -> Place:
    return Place(registered=name, parameters=parameters)


def _source(place: Place) -> Source:
    return Source(folder=place.directory, module=place.module, attribute=place.attribute)


def _find(request: Request) -> Answer:
    """Kind and name of each component of a file, or of the one that is named."""
    place = request.place
    if place.attribute:
        found = [(stated_kind(_source(place), request.kind), place.attribute)]
    else:
        found = [*components(Path(place.directory), place.module)]
    if not found:
        raise ImportFailure("it defines no component")
    return Answer(found=[Found(name=name, kind=kind) for kind, name in found])


def _adapted(kind: type[Kind[Any]], place: Place) -> Any:
    """The component at a place. Raises ImportFailure or ParameterFailure."""
    if not place.registered:
        return kind.adapt(_source(place).load(), place.parameters, _source(place))
    if place.registered == VECTORS:
        return Vectors()
    registry = REGISTRIES[kind.name]
    try:
        return registry.parse({"name": place.registered, **place.parameters})
    except ValidationError as error:
        raise ParameterFailure(error, registry.load(place.registered).model_fields) from error


def _load(request: Request) -> Answer:
    """What a run must know of a component, after it was tried on the run's samples."""
    kind, place, opened = kinds()[request.kind], request.place, OpenedFiles()
    source, directory = _source(place), Path(place.directory)
    called = source.load()
    own = kind.adapt(called, place.parameters, source)
    resolved = {field: REGISTRIES[field].parse(form) for field, form in request.forms.items()}
    on = On(
        source,
        place.parameters,
        **resolved,
        few=few_of(request.batch, resolved["dataset"]) if "dataset" in resolved else None,
        data_dir=Path(request.data_dir),
        ranks=request.ranks,
        batch_size=request.batch_size,
        loading=True,
    )
    tried = kind(own, on)
    tried.load()
    facts, samples = tried.facts(), tried.samples() if isinstance(tried, DatasetKind) else b""
    known = (
        REGISTRIES[request.kind]
        .wrapper.facts_model()
        .model_validate({**source.model_dump(), **facts}, strict=False)
    )
    files = opened.needed(directory, place.module, Path(request.data_dir))
    answer = {
        "facts": known.model_dump(mode="json", exclude_unset=True),
        "parameters": defaults_left_out(called, place.parameters),
        "files": sorted(str(path.relative_to(directory)) for path in files),
        "module": installed_digest(called, files),
        "samples": base64.b64encode(samples).decode(),
    }
    try:
        return checked(Answer, answer, "what a run must know of it")
    except ValueError as error:  # such as a file whose name has control characters
        raise ImportFailure(str(error)) from error


def _on_data(request: Request) -> tuple[Kind[Any], str]:
    """A component, tried on a dataset that it takes if it takes one; and how that is called.

    A user's is tried on the datasets of its own file first, then on those of its kind.

    Raises:
        ImportFailure: It takes none of them, or cannot be used.
        ParameterFailure: The parameters of the component are wrong.
        DatasetFailure: Those of the dataset are.
    """
    kind, place = kinds()[request.kind], request.place
    own = _adapted(kind, place)
    on = On(
        _source(place),
        place.parameters,
        place.registered or request.label,
        data_dir=Path(request.data_dir),
        equals=request.equals,
        limit_s=request.limit_s,
    )
    if kind.datasets is None:
        tried = kind(own, on)
        if place.registered and isinstance(tried, DatasetKind):
            try:
                _ = tried.data  # its laws use it, too
            except DataError as error:  # it is not downloaded
                raise DatasetFailure(str(error)) from error
        return tried, ""
    guessed = [_registered(**form) for form in kind.datasets]
    chosen = request.dataset or (guessed[0] if place.registered and guessed else None)
    if chosen is not None:
        of_dataset = _dataset(chosen, on.data_dir)
        if reason := own.validation_error(of_dataset["dataset"].shape):
            raise DatasetFailure(f"{reason}; choose another --dataset")
        return kind(own, replace(on, **of_dataset)), _label(chosen)
    refused: dict[str, list[str]] = {}
    for each in (*_datasets_beside(place), *guessed):
        try:
            tried = kind(own, replace(on, **_dataset(each, on.data_dir)))
            tried.fits()
        except ParameterFailure:
            raise
        except Exception as error:  # of the user's code, as it takes other samples
            cause = error.__cause__ if isinstance(error, DatasetFailure) and error.__cause__ else error
            refused.setdefault(located(cause, Path(place.directory)), []).append(_label(each))
        else:
            return tried, _label(each)
    if not guessed:
        return kind(own, on), "noise (--dataset takes a dataset)"
    reasons = "; ".join(f"on {', '.join(names)}: {reason}" for reason, names in refused.items())
    raise ImportFailure(f"{reasons}; --dataset takes another dataset")


def _datasets_beside(place: Place) -> Iterator[Place]:
    """The datasets that the component's file defines."""
    if place.registered or place.module == TORCHVISION:
        return
    for kind, name in components(Path(place.directory), place.module):
        if kind == "dataset":
            yield Place(directory=place.directory, module=place.module, attribute=name)


def _label(place: Place) -> str:
    """A dataset as reports show it, `synthetic channels=3`."""
    name = place.registered or place.attribute
    return " ".join([name, *(f"{key}={value}" for key, value in place.parameters.items())])


def _dataset(place: Place, data_dir: Path) -> dict[str, Any]:
    """A dataset on which a component is tried, and some of its samples if a user's code makes them."""
    import torch

    try:
        own: Dataset = _adapted(DatasetKind, place)
        if place.registered:
            return {"dataset": own, "few": None}
        train = own.load(data_dir).train
    except Exception as error:  # of the user's code, or because it is no dataset
        reason = located(error, Path(place.directory))
        raise DatasetFailure(f"--dataset {place.attribute}: {reason}") from error
    at = spread(train.targets, TRIED_SAMPLES)
    inputs, targets = (torch.from_numpy(values[at]) for values in (train.inputs, train.targets))
    return {"dataset": own, "few": Few(inputs, targets, train.labels)}


def few_of(batch: str, on: Dataset) -> Few:
    """Some samples of a run's dataset: those in a file, or noise in its shape if it is a registered one."""
    import torch

    if batch:
        with np.load(batch) as arrays:
            inputs, targets = (torch.from_numpy(arrays[name]) for name in ("inputs", "targets"))
            return Few(inputs, targets, arrays["labels"])
    labels = np.random.default_rng(0).integers(on.class_count, size=min(on.train_samples, MAX_LABELS))
    at = spread(labels, TRIED_SAMPLES)
    generator = torch.Generator().manual_seed(0)
    targets = torch.from_numpy(labels[at])
    if on.target_shape:
        targets = torch.randint(on.outputs, (len(at), *on.target_shape), generator=generator)
    return Few(noise(on, len(at), generator), targets, labels)


def _fit(request: Request) -> Answer:
    """Refuse the components of a run unless they fit together and are trained as written."""
    import torch

    resolved = {field: REGISTRIES[field].parse(request.forms[field]) for field in FIT}
    names = {field: REGISTRIES[field].name_of(each) for field, each in resolved.items()}
    model, on, loss = (resolved[field] for field in ("model", "dataset", "loss"))
    few = few_of(request.batch, on)
    try:
        if reason := model.validation_error(on.shape):
            raise ImportFailure(reason)
        torch.manual_seed(0)
        blocks = model.blocks(on.shape, on.outputs, torch.Generator())
        output = torch.nn.Sequential(*(block for _, block in blocks))(few.inputs)
        fit_error(loss, output, few.targets, on.class_count)
        written.compare(request.forms, few.inputs, few.targets)
    except Exception as error:
        what = "{model} on {dataset} with the loss {loss} and the optimizer {optimizer}".format(**names)
        raise ImportFailure(f"{what}: {located(error)}") from error
    return Answer()


def _figures(request: Request) -> Answer:
    """Costs of blocks, parameters of ranks, or a partition. Raises what users' code raises."""
    from trainer.strategies.hybrid import Hybrid
    from trainer.training.partition import partition_summary

    run, found = RunSpec.model_validate(request.run), dict[str, Any]()
    if request.do == "profile":
        from trainer.training.profile import profile_model

        found["blocks"] = [
            {**asdict(each), "output_shape": [*each.output_shape]} for each in profile_model(run)
        ]
    elif request.do == "ranks" and isinstance(run.strategy, Hybrid):
        found["rank_parameters"] = run.strategy.parameters_by_rank(run, request.split_points)
    else:
        data = run.dataset.load(Path(request.data_dir))
        summary = partition_summary(run, data.train.labels, data.classes)
        distances = {"js_divergence": [*summary.js_divergence]}
        distances["earth_movers_distance"] = [*summary.earth_movers_distance]
        found["partition"] = {**asdict(summary), **distances, "labels": summary.labels.tolist()}
    return checked(Answer, found, "its figures")
