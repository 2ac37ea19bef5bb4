"""Tries the laws of one component. Runs users' code: call it in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from trainer.components.facts import Source
from trainer.components.parameters import ParameterFailure, configured
from trainer.components.samples import TRIED_SAMPLES, spread
from trainer.conformance import (
    augmentation,
    dataset,
    loss,
    model,
    optimizer,
    partitioner,
    strategy,
    written,
)
from trainer.conformance.find import components
from trainer.conformance.law import Law
from trainer.conformance.report import CheckRequest
from trainer.core.registry import IMPORTED
from trainer.core.user_code import TORCHVISION, ImportFailure, located
from trainer.data.augmentations.base import Augmentation
from trainer.data.base import Data, DataError, Dataset
from trainer.models.base import Model
from trainer.optimizers.base import Optimizer
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec
from trainer.user_components import augmentation as imported_augmentation
from trainer.user_components import dataset as imported_dataset
from trainer.user_components import loss as imported_loss
from trainer.user_components import model as imported_model
from trainer.user_components import optimizer as imported_optimizer
from trainer.user_components import partitioner as imported_partitioner
from trainer.user_components import strategy as imported_strategy

if TYPE_CHECKING:
    from torch import Tensor


class RequestError(Exception):
    """A component cannot be checked like this. The message says what to change."""


PROCESS_S = 60.0  # in which another process must have answered
PLACE = ("name", "directory", "module", "attribute")  # of a dataset's form, beside its parameters
VECTORS = {"name": "vectors"}
# Datasets on which a model is tried, until it takes one: grey images, vectors and colour images.
GUESSED = (
    {"name": RunSpec.model_fields["dataset"].default},
    VECTORS,
    {"name": "synthetic", "channels": 3, "height": 32, "width": 32},
)


class Vectors(Dataset):
    """States samples for models that take vectors. No run can use it."""

    train_samples = property(lambda self: 100)
    shape = property(lambda self: (4,))
    class_count = property(lambda self: 3)

    def load(self, data_dir: Path) -> Data:
        raise DataError("it has no samples")


class DatasetParameterFailure(Exception):
    """Parameters of the dataset that a model takes are wrong."""

    def __init__(self, failure: ParameterFailure) -> None:
        super().__init__(str(failure))
        self.failure = failure


def source_of(request: CheckRequest) -> Source:
    """Where the component is imported from."""
    return Source(code="", folder=request.directory, module=request.module, attribute=request.attribute)


def on_data(request: CheckRequest) -> CheckRequest:
    """The request with a dataset that the component takes, if it takes one and the request names none.

    A user's model or augmentation is tried on the datasets of its own file first. A model is tried on
    registered ones then; an augmentation is left to noise.

    Raises:
        ImportFailure: A model takes none of them, or cannot be used.
        ParameterFailure: The parameters of the component are wrong.
    """
    if request.dataset or request.kind not in ("model", "augmentation"):
        return request
    if request.registered:
        model = request.kind == "model"
        return request.model_copy(update={"dataset": GUESSED[0]}) if model else request
    called = source_of(request).load()
    if imported_model.is_own(called):
        configured(called, request.parameters)  # whose mistakes are of no dataset
    refused: dict[str, list[str]] = {}
    guessed = GUESSED if request.kind == "model" else ()
    for form in (*_datasets_beside(request), *guessed):
        chosen = request.model_copy(update={"dataset": form})
        try:
            _try_on(chosen, called, *_dataset_of(chosen))
        except ParameterFailure:
            raise
        except Exception as error:  # of the user's code, as it takes other samples
            cause = error.__cause__ if isinstance(error, RequestError) and error.__cause__ else error
            refused.setdefault(located(cause, Path(request.directory)), []).append(data_label(form))
        else:
            return chosen
    if request.kind == "augmentation":
        return request
    tried = "; ".join(f"on {', '.join(names)}: {reason}" for reason, names in refused.items())
    raise ImportFailure(f"{tried}; --dataset takes another dataset")


def _datasets_beside(request: CheckRequest) -> Iterator[dict[str, Any]]:
    """The forms of the datasets that the component's file defines."""
    if request.module == TORCHVISION:
        return
    for kind, name in components(Path(request.directory), request.module):
        if kind == "dataset":
            yield {"directory": request.directory, "module": request.module, "attribute": name}


def _try_on(request: CheckRequest, called: Any, on: Dataset, samples: Tensor | None) -> None:
    """Raise an exception unless a user's model or augmentation takes samples of a dataset."""
    if request.kind == "augmentation":
        if not augmentation.takes(_augmentation(request), on.shape, samples):
            raise ImportFailure("it does not augment them")
        return
    built = model.Built(_model(request, on, samples), on, samples)
    if imported_model.is_own(called):
        built.chain()(built.inputs(2))


def data_label(form: Mapping[str, Any]) -> str:
    """A dataset as reports show it, `synthetic channels=3`."""
    parameters = form.get("parameters", {k: v for k, v in form.items() if k not in PLACE})
    return " ".join([form.get("attribute") or form["name"], *(f"{k}={v}" for k, v in parameters.items())])


def laws_of(request: CheckRequest) -> Iterator[Law[Any]]:
    """The laws of the component of a request, whose kind is known, on the dataset that `on_data` found.

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
            registered = request.dataset if on.target_shape and samples is None else None
            form = partial(_model_form, request, on, samples)
            yield written.law_of_model(form, on, registered, samples)
        case "dataset":
            stated, load = _dataset(request)
            yield from dataset.laws(load, stated, lambda: _in_another_process(request))
        case "optimizer":
            built = _optimizer(request)
            declared = "" if request.registered else getattr(source_of(request).load(), "equals", None)
            yield from optimizer.laws(built, request.equals or declared or "")
            yield written.law_of_optimizer(partial(_form, request, imported_optimizer.facts))
        case "loss":
            yield from loss.laws(_loss(request))
            yield written.law_of_loss(partial(_form, request, imported_loss.facts))
        case _ if request.dataset:
            on, samples = _dataset_of(request)
            yield from augmentation.laws(_augmentation(request), on.shape, samples)
        case _:
            yield from augmentation.laws(_augmentation(request))


def left_out(request: CheckRequest) -> str | None:
    """Why a component of a file that shows its kind is none after all; None if it is one."""
    if request.kind != "loss" or not loss.measures_answers(_loss(request)):
        return None
    return (
        "it gives a number for each answer, as the accuracy of a loss does; a loss gives one: check it as "
        f"{request.label}"
    )


def digest_of(request: CheckRequest) -> str:
    """The digest of splits or samples that another process must compute as well."""
    if request.kind == "partitioner":
        return partitioner.digest(_partitioner(request))
    return imported_dataset.digest(_dataset(request)[1]())


def _registered(request: CheckRequest) -> Any:
    registry = REGISTRIES[request.kind]
    try:
        return registry.parse({"name": request.registered, **request.parameters})
    except ValidationError as error:
        raise ParameterFailure(error, registry.load(request.registered).model_fields) from error


def _partitioner(request: CheckRequest) -> Any:
    if request.registered:
        return _registered(request)
    return imported_partitioner.build(source_of(request), request.parameters)


def _strategy(request: CheckRequest) -> tuple[Any, Any]:
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


def _model(request: CheckRequest, on: Dataset, samples: Tensor | None) -> Model:
    """The model, a user's own subclass of Model as it is."""
    if request.registered:
        registered: Model = _registered(request)
        return _accepting(registered, on)
    source = source_of(request)
    called = source.load()
    if imported_model.is_own(called):
        own: Model = configured(called, request.parameters)
        return _accepting(own, on)
    inputs = model.Built(REGISTRIES["model"].parse("mlp"), on, samples).inputs(TRIED_SAMPLES)
    facts = imported_model.facts(source, request.parameters, on.shape, on.outputs, inputs)
    return imported_model.ImportedModel(name=request.label, parameters=request.parameters, imported=facts)


def _model_form(request: CheckRequest, on: Dataset, samples: Tensor | None) -> dict[str, Any]:
    inputs = model.Built(REGISTRIES["model"].parse("mlp"), on, samples).inputs(TRIED_SAMPLES)
    return _form(request, partial(imported_model.facts, shape=on.shape, classes=on.outputs, inputs=inputs))


def _form(request: CheckRequest, facts: Callable[[Source, Mapping[str, Any]], Source]) -> dict[str, Any]:
    """The component as a spec has it. facts: finds what a spec knows of a user's."""
    if request.registered:
        return {"name": request.registered, **request.parameters}
    imported = facts(source_of(request), request.parameters).model_dump(mode="json")
    return {"name": request.label, **request.parameters, IMPORTED: imported}


def _accepting(own: Model, on: Dataset) -> Model:
    if reason := own.validation_error(on.shape):
        raise RequestError(f"{reason}; choose another --dataset")
    return own


def _dataset(request: CheckRequest) -> tuple[Dataset | None, Any]:
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


def _dataset_of(request: CheckRequest) -> tuple[Dataset, Tensor | None]:
    """The dataset that a request names, and some of its samples if a user's code makes them."""
    import torch

    form = request.dataset or {}
    if form == VECTORS:
        return Vectors(), None
    if "module" not in form:
        return REGISTRIES["dataset"].parse(form), None
    on = request.model_copy(update={"registered": "", "parameters": {}, **form})
    try:
        data: Data = _dataset(on)[1]()
    except ParameterFailure as error:
        raise DatasetParameterFailure(error) from error
    except Exception as error:  # of the user's code, or because it is no dataset
        raise RequestError(f"--dataset {on.attribute}: {located(error, Path(on.directory))}") from error
    facts = imported_dataset.facts_of(source_of(on), data, identity="")
    made = imported_dataset.ImportedDataset.model_validate(
        {"name": on.attribute, "parameters": on.parameters, "imported": facts}
    )
    return made, torch.from_numpy(data.train.inputs[spread(data.train.targets, TRIED_SAMPLES)])


def _optimizer(request: CheckRequest) -> Optimizer:
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


def _loss(request: CheckRequest) -> Any:
    if request.registered:
        return _registered(request)
    return imported_loss.build(source_of(request), request.parameters)


def _augmentation(request: CheckRequest) -> Augmentation:
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


def _in_another_process(request: CheckRequest) -> str:
    """What `digest_of` gives in a new process, in which hashes of strings differ."""
    done = subprocess.run(
        [sys.executable, "-m", "trainer.conformance.other_process"],
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
