"""Mistakes by which a user's model, optimizer or loss is trained as something else."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from tests.unit import written_components
from tests.unit.written_components import CLASSES, IMAGES, SHAPE
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.components import written
from trainer.components.facts import Source
from trainer.components.find import kinds
from trainer.components.kind import Few, On
from trainer.core.clock import Clock
from trainer.core.user_code import ImportFailure
from trainer.data.base import Data, Split
from trainer.spec.registries import DATASETS
from trainer.spec.run_spec import RunSpec
from trainer.training.evaluation import Evaluation
from trainer.training.loader import Batch
from trainer.training.partition import StepSizes
from trainer.training.replica import Replica
from trainer.training.task import Task

Forms = dict[str, Any]
FILE = Path(written_components.__file__)


def samples(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Samples in the order of their classes, as many files have them."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((17, *shape), np.float32)
    return torch.from_numpy(inputs), torch.arange(17) * CLASSES // 17


def forms(
    named: str = "Norm", steps: str = "two_rates", of: str = "plain", shape: Any = SHAPE, **parameters: Any
) -> Forms:
    """The components of a run as a sweep resolves them, after they were tried."""
    dataset = DATASETS.parse(written.described(17, shape=shape, class_count=CLASSES))
    on = On(dataset=dataset, few=Few(*samples(shape), np.arange(17)), loading=True)
    found: Forms = {"dataset": dataset}
    for field, name, given in (("model", named, {}), ("optimizer", steps, {}), ("loss", of, parameters)):
        where = Source(folder=str(FILE.parent), module=FILE.name, attribute=name)
        own = kinds()[field].adapt(where.load(), given, where)
        tried = kinds()[field](own, replace(on, source=where, parameters=given))
        tried.load()
        found[field] = {"name": name, **given, "imported": {**where.model_dump(), **tried.facts()}}
    return found


def few() -> Data:
    """The samples, in the default type."""
    inputs, targets = samples(SHAPE)
    split = Split(inputs.to(torch.get_default_dtype()).numpy(), targets.numpy())
    return Data(split, split, CLASSES, None)


def compare(**chosen: Any) -> str:
    return written.compare(forms(**chosen), *samples(chosen.get("shape", SHAPE)))


# Components that cannot be trained as written, and a pattern of what is said of them.
REFUSED = {"Listed": r"parameters\(\)", "Unfrozen": "body", "ReplacedAverage": "mean"}
REFUSED |= {"Sparse": "words.weight has a sparse gradient"}
REFUSED |= dict.fromkeys(("weighted", "ignoring", "added"), "on 2 ranks.*weight")  # losses that are no mean
CLASSES_OF = {name: each for name, each in vars(written_components).items() if isinstance(each, type)}
OTHERS = {"Layers", "Two", "WeightedModule", "Views", *REFUSED}
MODELS = [
    name
    for name, each in CLASSES_OF.items()
    if issubclass(each, nn.Module) and name not in OTHERS and "shape" not in signature(each).parameters
]


@pytest.mark.parametrize("named", MODELS)
def test_models_are_trained_as_written(named: str) -> None:
    steps = ("two_rates", "by_dimensions")[MODELS.index(named) % 2]
    assert "1 and 2 ranks" in compare(named=named, steps=steps)


@pytest.mark.parametrize(
    "chosen",
    [
        {"named": "Views", "steps": "decays", "shape": IMAGES},
        *({"named": "FrozenBody", "steps": steps} for steps in ("decays", "only_the_last", "Clipped")),
        {"of": "weighted", "weight": "weight_of_class"},
        {"of": "ignoring", "weight": "counts"},
        {"of": "WeightedModule"},
    ],
    ids=lambda chosen: "-".join(each for each in chosen.values() if isinstance(each, str)),
)
def test_memory_formats_steps_and_weights_of_samples_are_those_that_are_written(chosen: Forms) -> None:
    assert "1 and 2 ranks" in compare(**chosen)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_as_written_is_refused(name: str) -> None:
    with pytest.raises(ImportFailure, match=REFUSED[name]):
        compare(**{"named" if name in CLASSES_OF else "of": name})


def test_the_long_training_is_compared_on_one_rank_and_on_two(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = Mock()
    monkeypatch.setattr(written, "compare_run", compared)
    compare()
    specs = [call.args[0] for call in compared.call_args_list]
    assert [(spec.nodes, spec.epochs) for spec in specs] == [(2, 1), (1, 2), (2, 2)]


def test_numbers_that_are_none_differ_and_wide_images_are_cut_first() -> None:
    ones = torch.ones(3)
    state = written.State({"w": ones}, {"w": 2 * ones})
    for value, differs in ((2.0, False), (2.0 + 1e-6, False), (2.1, True), (torch.nan, True)):
        assert (written._difference(state, "w", torch.tensor([2.0, 2.0, value])) > 0) is differs
    inputs, targets = samples((3, 8, 80))
    found = written._forms(forms("Views", "decays", shape=(3, 8, 80)), inputs, targets)
    assert [data.train.inputs.shape[2:] for _, data in found] == [(8, 64), (8, 80)] * 2


def run_of(strategy: str, nodes: int, **chosen: Any) -> RunSpec:
    """A run of two replicas with a last batch that is smaller on one."""
    one = {"strategy": strategy, "nodes": nodes, "batch_size": written.LONG.batch // 2}
    return written.run_of(forms(**chosen), 2, written.LONG, **one)


# Each with models of every kind that a strategy may flatten, cut or average otherwise.
EQUAL = {
    "all_gather": (2, ["Unused", "FrozenChain", "Mixed"]),
    "reduce_broadcast": (2, ["FrozenNorm", "Integers", "Complex"]),
    "parameter_server": (3, ["Unused", "Average", "Scalar"]),
    "zero2": (2, ["RepeatedLinear", "FrozenChain", "Unused", "Scalar", "Mixed"]),
}


@pytest.mark.parametrize("strategy", EQUAL)
def test_strategies_that_equal_all_reduce_train_as_written(strategy: str) -> None:
    nodes, models = EQUAL[strategy]
    chosen = {"steps": "by_dimensions", "of": "weighted", "weight": "weight_of_class"}
    for named in models:
        spec = run_of(strategy, nodes, named=named, **chosen)
        kind = torch.float64 if {*spec.model.types} == {"float32"} else torch.float32
        with written.default_type(kind):
            written.compare_run(spec, few())


def replica(named: str, weights_seed: int = 0, **chosen: Any) -> Replica:
    spec = run_of("all_reduce", 2, named=named, **chosen)
    task = Task(spec, Path(), written.Loaded(few()))
    return Replica(task.build_model(0, weights_seed), task, Clock())


def test_ranks_exchange_the_buffers_that_training_changes_and_no_frozen_parameter() -> None:
    for named, buffers in (("FrozenNorm", 0), ("Average", 6), ("Norm", 16)):
        assert replica(named).flat_buffers().numel() == buffers
    whole, part = replica("FrozenBody"), replica("Unused")
    assert [each.weights().numel() for each in (whole, part)] == [8 * 3 + 3, 8 * 3 + 3 + 8 * 6 + 8 + 12]
    # Frozen weights are equal on ranks that start apart.
    other = replica("FrozenBody", weights_seed=1).model.model
    assert torch.equal(whole.model.model.body.weight, other.body.weight)
    assert not torch.equal(whole.model.model.head.weight, other.head.weight)


def test_every_state_of_an_optimizer_with_a_number_for_each_weight_is_averaged() -> None:
    trained = replica("Norm", steps="decays")
    for weight in trained.model.parameters():
        trained._optimizer.state[weight] = {"velocity": torch.ones_like(weight), "step": torch.tensor(1.0)}
    assert trained.optimizer_state().numel() == trained.parameter_count


def test_evaluation_does_not_change_what_a_model_draws_in_training() -> None:
    trained, (inputs, _) = replica("Noise"), samples(SHAPE)
    before = trained.state()["dropout"][0].clone()
    for mode, equal in ((trained.evaluating(), True), (nullcontext(), False)):
        with mode:
            trained.predict(inputs)
        assert torch.equal(trained.state()["dropout"][0], before) is equal


def test_a_model_is_split_only_if_its_children_do_the_same() -> None:
    others = ("FrozenNormInAChain", "OwnForward", "Hooked", "Double", "Detached", "Probabilities")
    found = [forms(named)["model"]["imported"] for named in ("RepeatedReLU", *others)]
    assert [each["indivisible"] is None for each in found] == [True] + [False] * 6


def test_a_loss_of_ignored_targets_is_evaluated_by_its_weights() -> None:
    spec = run_of("all_reduce", 2, of="ignoring", weight="counts")
    evaluate = Evaluation(few().test, spec.loss, MemoryCommunicator(0, 1, Clock(), ThreadGroup(1)))
    trained = replica("Norm", of="ignoring", weight="counts")
    _, found = evaluate(trained, alone=True)
    inputs, targets = samples(SHAPE)
    with trained.evaluating(), torch.no_grad():
        expected = written_components.ignoring(trained.model(inputs), targets)
    assert found == pytest.approx(expected.item())


def test_too_little_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "memory_left", lambda: 1000.0)
    with pytest.raises(ImportFailure, match="memory_mb"):
        compare()


def test_a_batch_that_does_not_count_changes_no_buffer_of_a_model() -> None:
    trained, one = replica("Average"), [each[:1] for each in samples(SHAPE)]
    before = trained.flat_buffers()
    for counts in (0, 1):
        trained.backward(Batch(*one, 0, StepSizes([counts, 1]), 1, 1), weight=float(counts))
        assert torch.equal(trained.flat_buffers(), before) == (not counts)


def test_strategies_that_divide_weights_refuse_such_optimizers() -> None:
    for steps, strategy, transport, fits in (
        ("two_rates", "pipeline", "memory", False), ("by_dimensions", "pipeline", "memory", True),
        ("Clipped", "zero1", "gloo", False), ("Clipped", "parameter_server", "memory", True),
        ("Clipped", "zero2", "memory", False), ("two_rates", "zero2", "memory", True),
    ):  # fmt: skip
        fields = {"strategy": strategy, "transport": transport, "batch_size": 4}
        with nullcontext() if fits else pytest.raises(ValidationError) as raised:
            written.run_of(forms("RepeatedReLU", steps), 2, written.LONG, **fields)
        assert fits or [each["type"] for each in raised.value.errors()] == ["optimizer"]
