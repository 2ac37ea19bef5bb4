"""Strategies: subclasses of Strategy. They are trained on this machine, and compared with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import numpy as np
from annotated_types import Interval
from pydantic import ValidationError

from trainer.comm.errors import CommunicationError, ExchangeError
from trainer.components.facts import MOST_RANKS, Imported, Source
from trainer.components.kind import Input, Kind, NotApplicable, Note, Verdict, counted, law
from trainer.core.failure import Failure
from trainer.core.strategy import Strategy, Uneven, runs_on
from trainer.core.trace import Kind as Exchange
from trainer.core.user_code import ImportFailure
from trainer.data.base import Data, Dataset, Split
from trainer.data.cache import DatasetCache
from trainer.spec.registries import STRATEGIES, TRANSPORTS
from trainer.spec.run_spec import RunSpec

if TYPE_CHECKING:
    from trainer.launch.threads import Training

# The last batch of an epoch is smaller on 1 to 4 replicas, and on 2 and 3 there are more than 25 steps.
SAMPLES, EPOCHS, BATCH = 252, 3, 10
COPIES = 12  # of equal samples, which 1 to 4 ranks share evenly
UNIQUE = SAMPLES // COPIES
RUN: dict[str, Any] = {
    "dataset": {"name": "synthetic", "samples": SAMPLES, "test_samples": 40, "noise": 1.0},
    "model": {"name": "mlp", "hidden": [8]},
    "batch_size": BATCH,
    "lr": 0.1,
    "epochs": EPOCHS,
    "save_weights": True,
}
_USUAL, _MLP = f"{SAMPLES} samples, batch {BATCH}", f"{EPOCHS} epochs, mlp with 8 units"
# By kind of run: what a reader is shown, and the fields that differ from RUN.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "usual": (f"{_USUAL}, {_MLP}", {}),
    "copied": (
        f"equal samples in one batch each, {UNIQUE} times {COPIES} in all, {_MLP}",
        {"partitioner": "contiguous", "batch_size": SAMPLES},
    ),
    "uneven": (f"{_USUAL}, each rank with more of them than the next, {_MLP}", {"partitioner": "quantity"}),
    # Weights that hardly move, so that BatchNorm statistics are a moving average of what the samples give.
    "normalised": (
        f"{_USUAL}, 1 epoch, wide_resnet, lr 1e-12",
        {
            "dataset": {**RUN["dataset"], "height": 8, "width": 8},
            "model": {"name": "wide_resnet", "widen": 1},
            "lr": 1e-12,
            "epochs": 1,
        },
    ),
}
RTOL, ATOL = 1e-4, 1e-6  # of weights that sums in another order give
NO_GROUP = "process group has not been initialized"  # what torch.distributed then says
TRAINED = 3  # numbers of ranks
SHARE = 0.25  # of the time for all laws, in which one training must have ended


class Ranks(Input):
    """A run on so many ranks.

    run: usual; copied, each rank has equal samples; uneven, each has more than the next; normalised, of a
    model with BatchNorm.
    """

    number: Annotated[int, Interval(ge=1, le=64)]
    run: Literal["usual", "copied", "uneven", "normalised"] = "usual"

    def __str__(self) -> str:
        return f"{counted(self.number, 'rank')}, {RUNS[self.run][0]}"

    def but(self, **changed: Any) -> Ranks:
        """The same with other values."""
        return self.model_copy(update=changed)

    def spec(self, strategy: Any, transport: str = "memory", debug: bool = False) -> RunSpec:
        """The run. strategy: its form, or an instance. Raises NotApplicable if the run is invalid."""
        fields = {"strategy": strategy, "nodes": self.number, "transport": transport, **RUNS[self.run][1]}
        fields["debug"] = debug
        try:
            return RunSpec.model_validate({**RUN, **fields})
        except ValidationError as error:
            msg = error.errors()[0]["msg"]
            raise NotApplicable(f"on {counted(self.number, 'rank')}: {msg}") from error

    @property
    def datasets(self) -> DatasetCache:
        """What loads the samples."""
        return Copied() if self.run == "copied" else DatasetCache()


class Copied(DatasetCache):
    """A dataset whose first samples come again and again."""

    def load(self, dataset: Dataset, data_dir: Path) -> Data:
        data = super().load(dataset, data_dir)
        first = np.tile(np.arange(UNIQUE), COPIES)
        return replace(data, train=Split(data.train.inputs[first], data.train.labels[first]))


ONE = Ranks(number=1)
RANKS = [Ranks(number=number) for number in range(1, 5)]


@cache
def reference(name: str, ranks: Ranks, rule: str = "") -> Training:
    """The training of a registered strategy. rule: its `uneven`; empty: the default, or it has none."""
    from trainer.launch.threads import train

    return train(ranks.spec({"name": name, **({"uneven": rule} if rule else {})}), datasets=ranks.datasets)


class StrategyKind(Kind[Strategy]):
    """A strategy that is tried. Each training is done once."""

    name = "strategy"
    base = Strategy
    needs = ("dataset", "model")
    most_ranks = MOST_RANKS
    equal_to = ("serial", "all_reduce")

    def __init__(self, own: Strategy, on: Any = None) -> None:
        super().__init__(own, on)
        self._done: dict[Ranks, Training | Exception] = {}

    @classmethod
    def adapt(cls, called: Any, parameters: Mapping[str, Any], source: Source) -> Strategy:
        own = super().adapt(called, parameters, source)
        transports = getattr(own, "transports", ())
        if not transports:
            raise ImportFailure('it declares no transports, such as transports = ("gloo", "mpi")')
        if unknown := [each for each in transports if each not in TRANSPORTS.entries]:
            raise ImportFailure(f"its transports have {unknown[0]!r}; allowed: {TRANSPORTS.known}")
        rule: Any = getattr(own, "aggregation", None)
        if hasattr(rule, "tolerated") and rule.tolerated(1) is not None:
            raise ImportFailure("a strategy of your own takes the mean; allowed: aggregation: mean")
        return own

    @classmethod
    def wrap(cls, called: Any, parameters: Mapping[str, Any], source: Source) -> Strategy:
        raise ImportFailure("it is no subclass of trainer.core.strategy.Strategy")

    def load(self) -> None:
        own, on = self.own, self.on
        if runs_on(own, on.ranks) and (reason := own.validation_error(on.model, on.ranks, on.batch_size)):
            raise ImportFailure(reason)
        super().load()

    @property
    def allowed(self) -> list[Ranks]:
        """The usual run on each number of ranks that it allows."""
        return [ranks for ranks in RANKS if runs_on(self.own, ranks.number)]

    @property
    def inputs(self) -> Sequence[Ranks]:
        return self.allowed[:TRAINED]

    @property
    def equal(self) -> str:
        """The strategy that it is compared with, or nothing."""
        return self.on.equals or self.own.claimed_equal or ""

    # Trainings

    def spec(self, ranks: Ranks, transport: str = "memory", debug: bool = False) -> RunSpec:
        """A run of it, in which it lists memory unless it is registered.

        Raises NotApplicable if the run is invalid.
        """
        on_ranks = StrategyKind(self.own, replace(self.on, ranks=ranks.number))
        # A strategy written on the communicator runs over every transport, whichever it lists.
        in_run = on_ranks.in_run(transports=(*self.own.transports, "memory"))
        spec = ranks.spec(in_run, transport, debug)
        if reason := self.own.validation_error(spec.model, spec.nodes, spec.batch_size):
            raise NotApplicable(f"on {counted(ranks.number, 'rank')}: {reason}")
        return spec

    def trained(self, ranks: Ranks) -> Training:
        """The training on so many ranks. Raises NotApplicable where it is impossible or fails."""
        if ranks not in self._done:
            try:
                self._done[ranks] = self.anew(ranks)
            except Exception as error:
                self._done[ranks] = error
        done = self._done[ranks]
        if isinstance(done, NotApplicable):
            raise done
        if isinstance(done, Exception):
            raise NotApplicable(f"it does not train: {done}") from done
        return done

    def anew(self, ranks: Ranks, debug: bool = False) -> Training:
        """The training, done now. Raises what the strategy raises, or NotApplicable."""
        from trainer.launch import processes, threads

        if not self.own.trains:
            raise NotApplicable("it does not train")
        if transport := self._between_processes:
            limit_s = SHARE * self.on.limit_s
            return processes.train(self.spec(ranks, transport, debug), limit_s, ranks.datasets)
        try:
            return threads.train(self.spec(ranks, debug=debug), datasets=ranks.datasets)
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
        from trainer.launch.processes import TRANSPORTS as FOUND_WITHOUT_LAUNCHER
        from trainer.launch.processes import trains_on_threads

        if self.own.forks:
            return "memory"
        transport = next((name for name in self.own.transports if name in FOUND_WITHOUT_LAUNCHER), None)
        if transport is None or "memory" in self.own.transports:
            return None
        try:
            spec = self.spec(Ranks(number=max((ranks.number for ranks in self.inputs[:2]), default=1)))
        except NotApplicable:
            return transport
        return None if trains_on_threads(spec) else transport

    def replicas(self, ranks: Ranks) -> Ranks:
        """Ranks of a strategy in which each holds a replica, as many as these ranks train."""
        return ranks.but(number=self.own.replicas(ranks.number))

    def off(self, ranks: Ranks, name: str, rule: str = "") -> Failure | None:
        """How its weights differ from those of a registered strategy; None if they are equal."""
        found = self.trained(ranks)
        if name == "serial":
            return _off(found, reference(name, ONE), "those of serial")
        replicas = self.replicas(ranks)
        of = f"those of {name} on {counted(replicas.number, 'rank')}"
        return _off(found, reference(name, replicas, rule), of)

    # Laws

    @law("it trains to the end, without deadlock", essential=True)
    def ends(self, ranks: Ranks) -> Verdict:
        from trainer.launch.threads import DeadlockError

        try:
            self._done[ranks] = self.anew(ranks)
        except (DeadlockError, CommunicationError) as error:
            with suppress(DeadlockError, CommunicationError):
                return self._misuse(ranks) or Failure("every rank trains to the end", str(error))
            return Failure("every rank trains to the end", str(error))
        except ExchangeError as error:
            return Failure("every request is waited for", str(error))
        return None

    @law("requests start in order, and own their buffers", essential=True)
    def requests(self, ranks: Ranks) -> Verdict:
        if not any((each.records["kind"] == Exchange.WAIT).any() for each in self.trained(ranks).traces):
            raise NotApplicable("it starts no exchange beside other work")
        return self._misuse(ranks)

    def _misuse(self, ranks: Ranks) -> Failure | None:
        """Which rule of exchanges it breaks, and where, as a run with `debug` finds it."""
        try:
            self.anew(ranks, debug=True)
        except ExchangeError as error:
            return Failure("exchanges that keep the rules", str(error))
        return None

    @law("every replica trains on its samples")
    def samples(self, ranks: Ranks) -> Verdict:
        own, training = self.own, self.trained(ranks)
        expected = EPOCHS * SAMPLES // (own.replicas(ranks.number) if own.uses_partition else 1)
        for rank in range(ranks.number):
            if not own.reports_samples(rank, ranks.number):
                continue
            if (found := training.results[rank].samples) != expected:
                return Failure(f"rank {rank} trains on {expected} samples", f"{found}")
            if (epochs := len(training.of("partition", rank))) != EPOCHS:
                return Failure(f"rank {rank} reports its samples in {EPOCHS} epochs", f"in {epochs}")
        return None

    @law("all ranks end with the same weights")
    def agree(self, ranks: Ranks) -> Verdict:
        training = self.trained(ranks)
        if training.same_weights:
            return None
        digests = [result.weights_digest or "none" for result in training.results]
        other = next(rank for rank, digest in enumerate(digests) if digest not in ("none", digests[0]))
        return Failure("equal weights on all ranks", f"those of ranks 0 and {other} differ")

    @law("the weights are finite and have changed")
    def finite(self, ranks: Ranks) -> Verdict:
        from trainer.training.task import Task

        found = self.trained(ranks).weights
        if not np.isfinite(found).all():
            return Failure("finite weights", "nan or infinite ones")
        model = Task(ONE.spec("serial"), Path()).build_model(0)
        before = np.concatenate([each.detach().flatten().numpy() for each in model.parameters()])
        return Failure("trained weights", "the initial ones") if np.array_equal(found, before) else None

    @law("equal seeds give equal weights")
    def repeats(self, ranks: Ranks) -> Verdict:
        if not self.own.deterministic:
            raise NotApplicable("it declares that it is not deterministic")
        first = self.trained(ranks)
        return _off(self.anew(ranks), first, "those of the first training", 0.0, 0.0)

    @law(
        "one replica gives the weights of serial",
        lambda self: [each for each in self.allowed if self.own.replicas(each.number) == 1][:1],
    )
    def one(self, ranks: Ranks) -> Verdict:
        off = self.off(ranks, "serial")
        if off and not self.equal:
            return Note(f"they differ: {off.got}; it declares no equality")
        return off

    @law(
        "its weights are those of the strategy that it equals",
        lambda self: [
            *self.inputs,
            *(ranks.but(run="uneven") for ranks in self.inputs[-1:] if self.equal == "all_reduce"),
        ],
    )
    def equals(self, ranks: Ranks) -> Verdict:
        self.trained(ranks)
        if not self.equal:
            several = [each for each in self.inputs if each.number > 1]
            if [ranks] == several[-1:] and (name := self._equal_to(several)):
                return Note(f'it could declare equals = "{name}"')
            raise NotApplicable("it declares no strategy that it equals, and --equals is not given")
        # With parts of different size, it may follow any of these rules.
        rules = get_args(get_args(Uneven)[0]) if ranks.run == "uneven" else ("",)
        offs = (self.off(ranks, self.equal, rule) for rule in rules)
        first = next(offs)
        return first if first and all(offs) else None  # all rules are trained only if none fits

    def _equal_to(self, several: Sequence[Ranks]) -> str | None:
        """The strategy that it equals on all of these numbers of ranks, or None."""
        for name in self.equal_to:
            if isinstance(self.own, STRATEGIES.load(name)):
                return None
            if not any(self.off(ranks, name) for ranks in several):
                return name
        return None

    @law(
        "more ranks with equal samples change nothing",
        lambda self: [ranks.but(run="copied") for ranks in self.inputs[1:][-1:]],
    )
    def averages(self, ranks: Ranks) -> Verdict:
        fewer = self.inputs[0].but(run=ranks.run)
        if not self.own.averages:
            raise NotApplicable("it declares that it adds up what ranks learn")
        if self.replicas(ranks) == self.replicas(fewer):
            raise NotApplicable("its ranks train one replica")
        of = f"those of {counted(fewer.number, 'rank')}"
        return _off(self.trained(ranks), self.trained(fewer), of)

    @law(
        "BatchNorm statistics are the mean over the ranks",
        lambda self: [ranks.but(run="normalised") for ranks in self.inputs[-1:]],
    )
    def statistics(self, ranks: Ranks) -> Verdict:
        """A rank's statistics are linear in its batches, so it does not matter when ranks average them."""
        own, replicas = self.own, self.own.replicas(ranks.number)
        if own.shares_model or replicas != ranks.number - own.servers or replicas < 2:
            raise NotApplicable("its ranks have no replicas of their own")
        return self.off(ranks, "all_reduce")

    @law("a rank sends at most what it declares")
    def bytes_(self, ranks: Ranks) -> Verdict:
        own, training = self.own, self.trained(ranks)
        for rank, result in enumerate(training.results):
            most = own.step_bytes(4 * result.parameters, rank, ranks.number)
            if most is None:
                break
            found = result.bytes_sent / max(1, result.steps)
            if found > most * (1 + 1e-6):
                return Failure(f"rank {rank} sends at most {most:,.0f} bytes per step", f"{found:,.0f}")
        agree = own.replicas(ranks.number) > 1 and training.same_weights and not own.forks
        if agree and not any(result.bytes_sent for result in training.results):
            return Note("its ranks agree, and no byte is counted: it exchanges outside of session.comm")
        if most is None:
            raise NotApplicable("it declares no step_bytes")
        return None


def _off(
    found: Training, expected: Training, of: str, rtol: float = RTOL, atol: float = ATOL
) -> Failure | None:
    """How weights differ from those of another training; None if they are equal."""
    own, other = found.weights, expected.weights
    if own.shape != other.shape:
        return Failure(f"{len(other)} weights, as {of}", f"{len(own)}")
    if np.allclose(own, other, rtol=rtol, atol=atol):
        return None
    errors = np.abs(own - other)
    worst = int(errors.argmax())
    wrong = int((errors > atol + rtol * np.abs(other)).sum())
    return Failure(
        f"{of}: weight {worst} is {other[worst]:.6g}",
        f"{own[worst]:.6g}; {wrong} of {len(errors)} weights differ",
    )


class ImportedStrategy(Imported, Strategy):
    """A user's strategy."""

    kind = StrategyKind

    def validation_error(self, model: Any, ranks: int, batch_size: int) -> str | None:
        known = self.imported.replica_of, self.imported.reports_samples, self.imported.sees_inputs
        if other := {len(each or ()) for each in known} - {ranks}:
            return f"{self.name} was tried for {other.pop()} ranks, and the run has {ranks}"
        return super().validation_error(model, ranks, batch_size)

    def shared_state(self, task: Any) -> Any:
        return self.own.shared_state(task)

    def train(self, session: Any) -> None:
        self.own.model_copy().train(session)  # ranks that are threads share no state of their own
