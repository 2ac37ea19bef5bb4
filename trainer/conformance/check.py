"""Tries the laws of one component. Runs users' code: call it in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trainer.conformance import augmentation, dataset, loss, model, optimizer, partitioner, strategy
from trainer.conformance.law import Law
from trainer.conformance.report import Request
from trainer.core.registry import IMPORTED
from trainer.data.augmentations.base import Augmentation
from trainer.data.base import Data, DataError, Dataset
from trainer.imported import augmentation as imported_augmentation
from trainer.imported import dataset as imported_dataset
from trainer.imported import loss as imported_loss
from trainer.imported import model as imported_model
from trainer.imported import optimizer as imported_optimizer
from trainer.imported import partitioner as imported_partitioner
from trainer.imported import strategy as imported_strategy
from trainer.imported.signature import ParameterFailure, configured
from trainer.imported.source import ImportFailure, Source, located
from trainer.models.base import Model
from trainer.optimizers.base import Optimizer
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from torch import Tensor


class RequestError(Exception):
    """A component cannot be checked like this. The message says what to change."""


PROCESS_S = 60.0  # in which another process must have answered
TRIED_SAMPLES = 16  # of a dataset, with which a model is tried


class DatasetParameterFailure(Exception):
    """Parameters of the dataset that a model takes are wrong."""

    def __init__(self, failure: ParameterFailure) -> None:
        super().__init__(str(failure))
        self.failure = failure


def source_of(request: Request) -> Source:
    """Where the component is imported from."""
    return Source(code="", folder=request.directory, module=request.module, attribute=request.attribute)


def laws_of(request: Request) -> Iterator[Law[Any]]:
    """The laws of the component of a request, whose kind is known.

    Raises:
        ImportFailure: It cannot be used.
        ParameterFailure: Its parameters are wrong.
        DatasetParameterFailure: Those of the dataset that it takes are.
    """
    match request.kind:
        case "partitioner":
            yield from partitioner.laws(_partitioner(request))
            yield partitioner.process_law(_partitioner(request), lambda: _in_another_process(request))
        case "strategy":
            yield from strategy.laws(*_strategy(request), request.equals, request.limit_s)
        case "model":
            on, samples = _dataset_of(request)
            yield from model.laws(_model(request, on, samples), on, samples)
        case "dataset":
            stated, load = _dataset(request)
            yield from dataset.laws(load, stated, lambda: _in_another_process(request))
        case "optimizer":
            built = _optimizer(request)
            declared = "" if request.registered else getattr(source_of(request).load(), "equals", None)
            yield from optimizer.laws(built, request.equals or declared or "")
        case "loss":
            yield from loss.laws(_loss(request))
        case _:
            shape = _dataset_of(request)[0].shape if request.dataset else None
            yield from augmentation.laws(_augmentation(request), shape)


def digest_of(request: Request) -> str:
    """What another process must compute as well: of splits, or of samples."""
    if request.kind == "partitioner":
        return partitioner.digest(_partitioner(request))
    return imported_dataset.digest(_dataset(request)[1]())


def _registered(request: Request) -> Any:
    registry = REGISTRIES[request.kind]
    try:
        return registry.parse({"name": request.registered, **request.parameters})
    except ValidationError as error:
        raise ParameterFailure(error, registry.load(request.registered).model_fields) from error


def _partitioner(request: Request) -> Any:
    if request.registered:
        return _registered(request)
    return imported_partitioner.build(source_of(request), request.parameters)


def _strategy(request: Request) -> tuple[Any, Any]:
    """The strategy, and its form in a spec for a number of ranks."""
    if request.registered:
        return _registered(request), lambda _: {"name": request.registered, **request.parameters}
    source = source_of(request)
    own = imported_strategy.build(source, request.parameters)
    trained = REGISTRIES["model"].parse(strategy.MODEL)

    def form(ranks: int) -> Mapping[str, Any]:
        facts = imported_strategy.facts(source, request.parameters, ranks, trained, strategy.BATCH)
        known = facts.model_dump(mode="json")
        # A strategy written on the communicator runs over every transport, whichever it lists.
        known["declared"]["transports"] = [*{*own.transports, "memory"}]
        return {"name": request.label, **request.parameters, IMPORTED: known}

    return own, form


def _model(request: Request, on: Dataset, samples: Tensor | None) -> Model:
    """The model, a user's own subclass of Model as it is."""
    if request.registered:
        registered: Model = _registered(request)
        return _accepting(registered, on)
    source = source_of(request)
    called = source.load()
    if imported_model.is_own(called):
        own: Model = configured(called, request.parameters)
        return _accepting(own, on)
    inputs = model.Built(REGISTRIES["model"].parse("mlp"), on, samples).inputs(2)
    try:
        facts = imported_model.facts(source, request.parameters, on.shape, on.class_count, inputs)
    except ParameterFailure:
        raise
    except Exception as error:
        if request.dataset:
            raise
        default = RunSpec.model_fields["dataset"].default
        reason = located(error, Path(request.directory))
        raise ImportFailure(f"{reason}; it was tried on {default}: --dataset takes another") from error
    return imported_model.ImportedModel(name=request.label, parameters=request.parameters, imported=facts)


def _accepting(own: Model, on: Dataset) -> Model:
    if reason := own.validation_error(on.shape):
        raise RequestError(f"{reason}; choose another --dataset")
    return own


def _dataset(request: Request) -> tuple[Dataset | None, Any]:
    """What states the samples' shape, if anything does, and the function that loads them."""
    data_dir = Path(request.data_dir)
    if request.registered:
        registered = _registered(request)
        try:
            registered.load(data_dir)
        except DataError as error:  # it is not downloaded
            raise RequestError(str(error)) from error
        return registered, lambda: registered.load(data_dir)
    called = source_of(request).load()
    own = configured(called, request.parameters) if _is(called, Dataset) else None

    def load() -> Data:
        return imported_dataset.load_data(called, request.parameters, data_dir, Path(request.directory))

    return own, load


def _is(called: Any, base: type) -> bool:
    return isinstance(called, type) and issubclass(called, base)


def _dataset_of(request: Request) -> tuple[Dataset, Tensor | None]:
    """The dataset whose samples a model takes, and some of them if a user's code makes them."""
    import torch

    form = request.dataset or {"name": RunSpec.model_fields["dataset"].default}
    if "module" not in form:
        return REGISTRIES["dataset"].parse(form), None
    on = request.model_copy(update={"registered": "", "parameters": {}, **form})
    try:
        data: Data = _dataset(on)[1]()
    except ParameterFailure as error:
        raise DatasetParameterFailure(error) from error
    except Exception as error:  # of the user's code, or because it is no dataset
        raise RequestError(f"--dataset {on.attribute}: {located(error, Path(on.directory))}") from error
    facts = imported_dataset.DatasetFacts(
        **dict(source_of(on)),
        train_samples=len(data.train.labels),
        test_samples=len(data.test.labels),
        shape=data.train.inputs.shape[1:],
        input_type=data.train.inputs.dtype.name,
        class_count=data.classes,
        data="",
    )
    made = imported_dataset.ImportedDataset.model_validate(
        {"name": on.attribute, "parameters": on.parameters, "imported": facts}
    )
    return made, torch.from_numpy(data.train.inputs[:TRIED_SAMPLES])


def _optimizer(request: Request) -> Optimizer:
    if request.registered:
        registered: Optimizer = _registered(request)
        return registered
    source = source_of(request)
    called = source.load()
    if _is(called, Optimizer):
        own: Optimizer = configured(called, request.parameters)
        return own
    facts = imported_optimizer.OptimizerFacts(
        **source.model_dump(), layerwise=bool(getattr(called, "layerwise", False))
    )
    return imported_optimizer.ImportedOptimizer(
        name=request.label, parameters=request.parameters, imported=facts
    )


def _loss(request: Request) -> Any:
    if request.registered:
        return _registered(request)
    return imported_loss.build(source_of(request), request.parameters)


def _augmentation(request: Request) -> Augmentation:
    if request.registered:
        registered: Augmentation = _registered(request)
        return registered
    source = source_of(request)
    called = source.load()
    if _is(called, Augmentation):
        own: Augmentation = configured(called, request.parameters)
        return own
    return imported_augmentation.ImportedAugmentation(
        name=request.label, parameters=request.parameters, imported=source
    )


def _in_another_process(request: Request) -> str:
    """What `digest_of` gives in a new process, in which hashes of strings differ."""
    done = subprocess.run(
        [sys.executable, "-m", "trainer.conformance.elsewhere"],
        input=request.model_dump_json(),
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        env={**os.environ, "PYTHONHASHSEED": "1"},
    )
    if done.returncode:
        raise RuntimeError(
            f"another process fails: {(done.stderr.strip() or 'no message').splitlines()[-1]}"
        )
    return done.stdout.strip()
