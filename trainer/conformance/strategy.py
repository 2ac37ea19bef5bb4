"""Laws of strategies: they are trained on this machine and compared with those that they equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from pydantic import ValidationError

from trainer.conformance.law import Law, NotApplicable, Note, Outcome
from trainer.core.failure import Failure
from trainer.core.strategy import Strategy, Uneven, runs_on
from trainer.data.base import Data, Dataset, Split
from trainer.data.cache import DatasetCache

if TYPE_CHECKING:
    from trainer.launch.threads import Training
    from trainer.spec.run_spec import RunSpec

# The last batch of an epoch is smaller on 1 to 4 replicas, and on 2 and 3 there are more than 25 steps.
SAMPLES, EPOCHS, BATCH = 252, 3, 10
COPIES = 12  # of equal samples, which 1 to 4 ranks share evenly
UNIQUE = SAMPLES // COPIES
MODEL = {"name": "mlp", "hidden": [8]}
RUN: dict[str, Any] = {
    "dataset": {"name": "synthetic", "samples": SAMPLES, "test_samples": 40, "noise": 1.0},
    "model": MODEL,
    "batch_size": BATCH,
    "lr": 0.1,
    "epochs": EPOCHS,
    "save_weights": True,
}
RTOL, ATOL = 1e-4, 1e-6  # of weights that sums in another order give
# Weights that hardly move, so that BatchNorm statistics are a moving average of what the samples give.
NORMALISED: dict[str, Any] = {
    "dataset": {**RUN["dataset"], "height": 8, "width": 8},
    "model": {"name": "wide_resnet", "widen": 1},
    "lr": 1e-12,
    "epochs": 1,
}


@dataclass(frozen=True)
class Ranks:
    """A run on so many ranks. samples: what each rank has. normalised: its fields are NORMALISED."""

    number: int
    samples: Literal["its own", "equal ones in one batch", "more than the next"] = "its own"
    normalised: bool = False

    @property
    def count(self) -> str:
        """`1 rank`, `2 ranks`."""
        return f"{self.number} {'rank' if self.number == 1 else 'ranks'}"

    def __str__(self) -> str:
        if self.normalised:
            return f"{self.count}, {SAMPLES} samples, batch {BATCH}, 1 epoch, wide_resnet, lr 1e-12"
        given = f"{SAMPLES} samples, batch {BATCH}"
        match self.samples:
            case "equal ones in one batch":
                given = f"equal samples in one batch each, {UNIQUE} times {COPIES} in all"
            case "more than the next":
                given += ", each rank with more of them than the next"
        return f"{self.count}, {given}, {EPOCHS} epochs, mlp with 8 units"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the run that differ from RUN."""
        if self.normalised:
            return NORMALISED
        match self.samples:
            case "equal ones in one batch":
                return {"partitioner": "contiguous", "batch_size": SAMPLES}
            case "more than the next":
                return {"partitioner": "quantity"}
        return {}

    @property
    def datasets(self) -> DatasetCache:
        """What loads the samples."""
        return Copied() if self.samples == "equal ones in one batch" else DatasetCache()


class Copied(DatasetCache):
    """A dataset whose first samples come again and again."""

    def load(self, dataset: Dataset, data_dir: Path) -> Data:
        data = super().load(dataset, data_dir)
        first = np.tile(np.arange(UNIQUE), COPIES)
        train = Split(data.train.inputs[first], data.train.labels[first])
        return replace(data, train=train)


RANKS = [Ranks(number) for number in range(1, 5)]
NO_GROUP = "process group has not been initialized"  # what torch.distributed then says
TRAINED = 3  # numbers of ranks
SHARE = 0.25  # of the time of a check, in which one training must have ended


class Trainings:
    """Trainings of one strategy, each done once.

    own: the strategy. form: its form in a spec for a number of ranks; it lists the transport memory, unless
    the strategy is a registered one that does not. tried: the number of ranks with which threads are tried.
    limit_s: seconds for a training whose ranks are processes.
    """

    def __init__(self, own: Strategy, form: Callable[[int], Any], tried: int, limit_s: float) -> None:
        self.own, self._form, self._tried, self._limit_s = own, form, tried, limit_s
        # By registered strategy and its rule for parts of different size; both are empty for the own one.
        self._done: dict[tuple[str, str, Ranks], Training | Exception] = {}

    def __call__(self, ranks: Ranks) -> Training:
        """The training on so many ranks. Raises NotApplicable where it is impossible or fails."""
        return self._trained("", ranks)

    def begin(self, ranks: Ranks) -> None:
        """Do the training on so many ranks. Raises what the strategy raises, or NotApplicable."""
        self._done["", "", ranks] = self.anew(ranks)

    def reference(self, name: str, ranks: Ranks, rule: str = "") -> Training:
        """The training of a registered strategy. rule: its `uneven`; empty: the default, or it has none."""
        return self._trained(name, ranks, rule)

    def anew(self, ranks: Ranks) -> Training:
        """The training, done now. Raises what the strategy raises, or NotApplicable."""
        return self._train("", ranks)

    def _trained(self, name: str, ranks: Ranks, rule: str = "") -> Training:
        key = name, rule, ranks
        if key not in self._done:
            try:
                self._done[key] = self._train(name, ranks, rule)
            except Exception as error:
                self._done[key] = error
        done = self._done[key]
        if isinstance(done, NotApplicable):
            raise done
        if isinstance(done, Exception):
            raise NotApplicable(f"it does not train: {done}") from done
        return done

    def _train(self, name: str, ranks: Ranks, rule: str = "") -> Training:
        from trainer.launch import processes, threads

        if not self.own.trains:
            raise NotApplicable("it does not train")
        if name:
            registered = {"name": name, **({"uneven": rule} if rule else {})}
            return threads.train(_spec(registered, "memory", ranks), datasets=ranks.datasets)
        own = self._form(ranks.number)
        if transport := self._between_processes:
            return processes.train(_spec(own, transport, ranks), self._limit_s, ranks.datasets)
        try:
            return threads.train(_spec(own, "memory", ranks), datasets=ranks.datasets)
        except Exception as error:
            if "memory" in self.own.transports or NO_GROUP not in str(error):
                raise
            only = ", ".join(self.own.transports)
            reason = f"it calls torch.distributed and lists only {only}, which check does not start"
            raise NotApplicable(reason) from error

    @cached_property
    def _between_processes(self) -> str | None:
        """The transport between its ranks if they must be processes; None: they are threads over memory.

        Threads are faster, and their exchanges are watched. They can be the ranks of a strategy that calls
        only the communicator, whichever transports it lists.
        """
        from trainer.launch.processes import TRANSPORTS, trains_on_threads

        if self.own.forks:
            return "memory"
        transport = next((name for name in self.own.transports if name in TRANSPORTS), None)
        if transport is None or "memory" in self.own.transports:
            return None
        try:
            spec = _spec(self._form(self._tried), "memory", Ranks(self._tried))
        except NotApplicable:
            return transport
        return None if trains_on_threads(spec) else transport

    def replicas(self, ranks: Ranks) -> Ranks:
        """Ranks of a strategy in which each holds a replica, as many as these ranks train."""
        return replace(ranks, number=self.own.replicas(ranks.number))


def _spec(strategy: Any, transport: str, ranks: Ranks) -> RunSpec:
    """A run. strategy: its form. Raises NotApplicable if the run is invalid."""
    from trainer.spec.run_spec import RunSpec

    run = {**RUN, "strategy": strategy, "nodes": ranks.number, "transport": transport, **ranks.fields}
    try:
        return RunSpec.model_validate(run)
    except ValidationError as error:
        raise NotApplicable(f"on {ranks.number} ranks: {error.errors()[0]['msg']}") from error


def laws(own: Strategy, form: Callable[[int], Any], equals: str, limit_s: float) -> Iterator[Law[Any]]:
    """The laws of a strategy.

    own: an instance. form: what a spec contains, for a number of ranks. equals: `serial` or `all_reduce`;
    empty: what it declares. limit_s: seconds in which all laws must have been tried.
    """
    equals = equals or own.claimed_equal or ""
    allowed = [ranks for ranks in RANKS if runs_on(own, ranks.number)]
    tried = allowed[:TRAINED]
    trainings = Trainings(own, form, max((ranks.number for ranks in tried[:2]), default=1), SHARE * limit_s)
    fewest, most = (tried or RANKS)[0], (tried or RANKS[:1])[-1]
    uneven = [replace(most, samples="more than the next")] if equals == "all_reduce" else []
    law = partial(Law[Ranks], inputs=tried)
    yield law("ends", "it trains to the end, without deadlock", partial(_ends, trainings), essential=True)
    yield law("samples", "every replica trains on its samples", lambda ranks: _samples(trainings, ranks))
    yield law("agree", "all ranks end with the same weights", lambda ranks: _agree(trainings, ranks))
    yield law("finite", "the weights are finite and have changed", lambda ranks: _moved(trainings, ranks))
    yield law("repeats", "equal seeds give equal weights", lambda ranks: _repeats(trainings, ranks))
    yield Law(
        "one",
        "one replica gives the weights of serial",
        lambda ranks: _one(trainings, ranks, equals),
        [ranks for ranks in allowed if own.replicas(ranks.number) == 1][:1],
    )
    yield Law(
        "equals",
        f"its weights are those {f'of {equals}' if equals else 'that it declares'}",
        lambda ranks: _equals(trainings, ranks, equals, tried),
        [*tried, *uneven],
    )
    yield Law(
        "averages",
        "more ranks with equal samples change nothing",
        lambda ranks: _averages(trainings, ranks, fewest),
        [replace(most, samples="equal ones in one batch")] if most != fewest else [],
    )
    yield Law(
        "statistics",
        "BatchNorm statistics are the mean over the ranks",
        lambda ranks: _statistics(trainings, ranks),
        [replace(most, normalised=True)],
    )
    yield law("bytes", "a rank sends at most what it declares", lambda ranks: _bytes(trainings, ranks))


def _ends(trainings: Trainings, ranks: Ranks) -> Outcome:
    from trainer.launch.threads import DeadlockError

    try:
        trainings.begin(ranks)
    except DeadlockError as error:
        return Failure("every rank trains to the end", str(error))
    return None


def _samples(trainings: Trainings, ranks: Ranks) -> Outcome:
    own, training = trainings.own, trainings(ranks)
    reporting = [rank for rank in range(ranks.number) if own.reports_samples(rank, ranks.number)]
    parts = own.replicas(ranks.number) if own.uses_partition else 1
    for rank in reporting:
        found, expected = training.results[rank].samples, EPOCHS * SAMPLES // parts
        if found != expected:
            return Failure(f"rank {rank} trains on {expected} samples", f"{found}")
        epochs = len(training.of("partition", rank))
        if epochs != EPOCHS:
            return Failure(f"rank {rank} reports its samples in {EPOCHS} epochs", f"in {epochs}")
    return None


def _agree(trainings: Trainings, ranks: Ranks) -> Outcome:
    training = trainings(ranks)
    if training.same_weights:
        return None
    digests = [result.weights_digest or "none" for result in training.results]
    other = next(rank for rank, digest in enumerate(digests) if digest not in ("none", digests[0]))
    return Failure("equal weights on all ranks", f"those of ranks 0 and {other} differ")


def _moved(trainings: Trainings, ranks: Ranks) -> Outcome:
    from pathlib import Path

    from trainer.spec.run_spec import RunSpec
    from trainer.training.task import Task

    found = trainings(ranks).weights
    if not np.isfinite(found).all():
        return Failure("finite weights", "nan or infinite ones")
    model = Task(RunSpec.model_validate({**RUN, "strategy": "serial"}), Path()).build_model(0)
    before = np.concatenate([each.detach().flatten().numpy() for each in model.parameters()])
    if len(found) == len(before) and np.array_equal(found, before):
        return Failure("trained weights", "the initial ones")
    return None


def _repeats(trainings: Trainings, ranks: Ranks) -> Outcome:
    if not trainings.own.deterministic:
        raise NotApplicable("it declares that it is not deterministic")
    first, second = trainings(ranks), trainings.anew(ranks)
    return _off(second, first, 0.0, 0.0, "those of the first training")


def _one(trainings: Trainings, ranks: Ranks, equals: str) -> Outcome:
    found, serial = trainings(ranks), trainings.reference("serial", Ranks(1))
    off = _off(found, serial, RTOL, ATOL, "those of serial")
    if off and not equals:
        return Note(f"they differ: {off.got}; it declares no equality")
    return off


def _equals(trainings: Trainings, ranks: Ranks, equals: str, tried: Sequence[Ranks]) -> Outcome:
    found = trainings(ranks)
    if not equals:
        several = [each for each in tried if each.number > 1]
        if [ranks] == several[-1:] and (name := _equal_to(trainings, several)):
            return Note(f'it could declare equals = "{name}"')
        raise NotApplicable("it declares no strategy that it equals, and --equals is not given")
    if equals == "serial":
        return _off(found, trainings.reference(equals, Ranks(1)), RTOL, ATOL, "those of serial")
    replicas = trainings.replicas(ranks)
    of = f"those of {equals} on {replicas.number} ranks"
    # With parts of different size, it may follow any of these rules.
    rules = get_args(get_args(Uneven)[0]) if ranks.samples == "more than the next" else ("",)
    offs = (_off(found, trainings.reference(equals, replicas, rule), RTOL, ATOL, of) for rule in rules)
    first = next(offs)
    return first if first and all(offs) else None  # all rules are trained only if none fits


def _averages(trainings: Trainings, ranks: Ranks, fewest: Ranks) -> Outcome:
    own, fewer = trainings.own, replace(fewest, samples=ranks.samples)
    if not own.averages:
        raise NotApplicable("it declares that it adds up what ranks learn")
    if own.replicas(ranks.number) == own.replicas(fewer.number):
        raise NotApplicable("its ranks train one replica")
    return _off(trainings(ranks), trainings(fewer), RTOL, ATOL, f"those of {fewer.count}")


def _statistics(trainings: Trainings, ranks: Ranks) -> Outcome:
    """A rank's statistics are linear in its batches, so it does not matter when ranks average them."""
    own, replicas = trainings.own, trainings.replicas(ranks)
    if own.shares_model or replicas.number != ranks.number - own.servers or replicas.number < 2:
        raise NotApplicable("its ranks have no replicas of their own")
    return _off(
        trainings(ranks), trainings.reference("all_reduce", replicas), RTOL, ATOL, "those of all_reduce"
    )


def _equal_to(trainings: Trainings, several: Sequence[Ranks]) -> str | None:
    """The strategy that it equals on all of these numbers of ranks, or None."""
    from trainer.spec.registries import STRATEGIES

    for name in ("serial", "all_reduce"):
        if isinstance(trainings.own, STRATEGIES.load(name)):
            return None
        if all(_is_equal(trainings, ranks, name) for ranks in several):
            return name
    return None


def _is_equal(trainings: Trainings, ranks: Ranks, name: str) -> bool:
    reference = trainings.reference(name, Ranks(1) if name == "serial" else trainings.replicas(ranks))
    return not _off(trainings(ranks), reference, RTOL, ATOL, name)


def _off(found: Training, reference: Training, rtol: float, atol: float, of: str) -> Failure | None:
    """How weights differ from those of a reference; None if they are equal."""
    expected = reference.weights
    if found.weights.shape != expected.shape:
        return Failure(f"{len(expected)} weights, as {of}", f"{len(found.weights)}")
    if np.allclose(found.weights, expected, rtol=rtol, atol=atol):
        return None
    errors = np.abs(found.weights - expected)
    worst = int(errors.argmax())
    wrong = int((errors > atol + rtol * np.abs(expected)).sum())
    return Failure(
        f"{of}: weight {worst} is {expected[worst]:.6g}",
        f"{found.weights[worst]:.6g}; {wrong} of {len(errors)} weights differ",
    )


def _bytes(trainings: Trainings, ranks: Ranks) -> Outcome:
    own, training = trainings.own, trainings(ranks)
    for rank, result in enumerate(training.results):
        most = own.step_bytes(4 * result.parameters, rank, ranks.number)
        if most is None:
            break
        found = result.bytes_sent / max(1, result.steps)
        if found > most * (1 + 1e-6):
            return Failure(f"rank {rank} sends at most {most:,.0f} bytes per step", f"{found:,.0f}")
    agree = trainings.replicas(ranks).number > 1 and training.same_weights and not own.forks
    if agree and not any(result.bytes_sent for result in training.results):
        return Note("its ranks agree, and no byte is counted: it exchanges outside of session.comm")
    if most is None:
        raise NotApplicable("it declares no step_bytes")
    return None
