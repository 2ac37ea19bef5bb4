"""A model of an elastic run, in which every order of steps, losses and returns is tried.

The ranks run `Survivor` and the run's owner `MembershipTracker`. What is modelled is around them: the
program of a rank, the messages of an exchange, events on their way to the tracker, losses and returns.

States are searched breadth-first. Generators cannot be copied, so a rank's state is stored as the outcomes
of its steps, and replayed; states with equal variables are one state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from types import FunctionType, GeneratorType
from typing import Any, NamedTuple

from trainer.comm import views
from trainer.comm.errors import CommunicationError
from trainer.comm.views import Broken, Survivor
from trainer.core.events import Event
from trainer.core.membership import Membership, MembershipTracker

RECENT = 6  # operations of which a rank keeps the result, for comparison
BROKEN = "broken"  # the outcome of a step that has failed


@dataclass(frozen=True)
class Setting:
    """What is modelled: epochs that end with an all-reduce, or with a round of `shifts`.

    lost: whether the last rank is lost in the first exchange. losses, returns: at most so many others.
    delayed: whether changes of the membership reach ranks at different times, as in containers.
    """

    ranks: int
    epochs: int = 2
    shifts: bool = False
    lost: bool = False
    losses: int = 0
    returns: int = 0
    delayed: bool = False


class Exchange(NamedTuple):
    """A step: send a value to the members, and receive that of `source` or of all. tag: the same on all."""

    tag: Any
    value: Any = None
    source: int | None = None


class Report(NamedTuple):
    kind: str  # of an event for the tracker
    fields: tuple[tuple[str, int], ...] = ()


Steps = Generator[Any, Any, Any]


class Program:
    """What a rank does: session, strategy and `ElasticCommunicator`, without their computation."""

    def __init__(self, setting: Setting, rank: int, incarnation: int) -> None:
        self.setting, self.rank, self.incarnation = setting, rank, incarnation
        self.survivor = Survivor(rank, incarnation, setting.ranks)
        self.result = self.newest = None
        self.recent: dict[int, Any] = {}  # by number of operation

    def steps(self) -> Steps:
        epoch, joining, returned = 1, None, self.incarnation > 0
        if returned:
            yield from self.carry_out(self.survivor.join())
            yield from self.perform("barrier")
            yield Report("train_start")
            epoch = yield from self.catch_up(epoch, self.rank)
        for each in range(epoch, self.setting.epochs + 1):
            if each > epoch or not returned:
                joining = yield from self.admit()
                if joining is not None:
                    yield from self.catch_up(each, joining)
            if not self.setting.shifts:
                yield from self.exchange("all_reduce")
            for distance in range(1, len(self.survivor.members)) if self.setting.shifts else ():
                yield from self.perform("shift", distance)
        yield from self.perform("close")
        yield Report("done")

    def admit(self) -> Steps:
        waiting = (yield views.Await(lambda _: True)).incarnations("waiting")
        own = tuple(waiting.get(rank, -1) for rank in range(self.setting.ranks))
        del waiting  # the state does not depend on it any more
        seen = yield from self.exchange("all_gather", own)
        joining = views.known_to_all([each for _, each in seen])
        if joining is None or not (yield from self.carry_out(self.survivor.admit(*joining))):
            return None
        yield from self.perform("barrier")
        return joining[0]

    def catch_up(self, value: int, joining: int) -> Steps:
        while True:
            source = next((rank for rank in self.survivor.members if rank != joining), None)
            if source is None:
                raise CommunicationError("no node is left that has the weights")
            values = yield from self.exchange("catch_up", value if source == self.rank else None)
            if source in self.survivor.members:
                return dict(values)[source]

    def exchange(self, kind: str, value: Any = None) -> Steps:
        """As the methods of Communicator: a rank that is alone exchanges nothing."""
        alone = len(self.survivor.members) == 1
        return ((self.rank, value),) if alone else (yield from self.perform(kind, value))

    def perform(self, kind: str, value: Any = None) -> Steps:
        """Complete an operation. Its result is the value of each rank that took part."""
        number, common = self.survivor.completed, kind != "shift"
        own = yield from self.carry_out(self.survivor.operate(common), kind, value)
        if own and common:
            self.newest = self.result
        self.result = None
        if kind != "close":  # its members differ if some have finished, and it has no result
            self.recent[number] = kind, self.survivor.members, self.newest if common else None
            self.recent.pop(number - RECENT, None)
        return self.newest

    def carry_out(self, steps: Steps, kind: str = "", value: Any = None) -> Steps:
        outcome = None
        while True:
            try:
                step = steps.throw(Broken("lost")) if outcome == BROKEN else steps.send(outcome)
            except StopIteration as end:
                return end.value
            outcome = None
            try:
                outcome = yield from self.step(step, kind, value)
            except Broken:
                outcome = BROKEN

    def step(self, step: Any, kind: str, value: Any) -> Steps:
        match step:
            case views.Operate():
                group, source = sorted(self.survivor.group), None
                if kind == "shift":
                    source = group[(group.index(self.rank) - value) % len(group)]
                values = yield Exchange((kind, self.survivor.completed), value, source)
                self.result = None if source is not None else tuple(zip(group, values, strict=True))
            case views.Compare():
                return (yield Exchange("compare", (step.completed, step.newest)))
            case views.TakeOver(source, needed):
                rank = sorted(self.survivor.group)[source]
                (result,) = yield Exchange(("take over", rank), self.newest, rank)
                self.newest = result if needed else self.newest
            case views.Meet():
                yield Exchange("meet")
            case views.Consent(rank, incarnation):
                yield Report("consent", (("returned", rank), ("incarnation", incarnation)))
            case _:
                return (yield step)


class Local:
    """A rank's state: its program, advanced to a `step` that takes time, after `effects` that take none."""

    def __init__(self, setting: Setting, rank: int, incarnation: int, outcomes: tuple[Any, ...]) -> None:
        self.key, self.outcomes = (setting, rank, incarnation), outcomes
        program = Program(setting, rank, incarnation)
        self.survivor, self.recent = program.survivor, program.recent
        self.failure: str | None = None
        steps = program.steps()
        try:
            for outcome in (None, *outcomes):
                self.effects: list[Any] = []
                found = outcome.membership if isinstance(outcome, Owner) else outcome
                step = steps.throw(Broken("lost")) if outcome == BROKEN else steps.send(found)
                while isinstance(step, views.Leave | Report):
                    self.effects.append(step)
                    step = next(steps)
                self.step: Any = step
        except StopIteration:
            self.step = None
        except CommunicationError as error:
            self.failure, self.step = str(error), None
        self.fingerprint = (self.failure, frozen(vars(program)), frozen(steps))


class Owner:
    """The tracker's state."""

    def __init__(self, tracker: MembershipTracker) -> None:
        self.tracker, self.membership = tracker, tracker.current
        self.fingerprint = frozen(vars(tracker))
        self.idle = tracker.without_work if tracker.over else set()  # ranks that are stopped
        self.returning = {} if tracker.over else {rank: tracker.lost[rank] for rank in tracker.absent}


def frozen(value: Any) -> Any:
    """A hashable copy that is equal for equal values. Functions differ in nothing but their variables."""
    match value:
        case None | int() | str():  # most values
            return value
        case dict():
            return tuple((key, frozen(each)) for key, each in sorted(value.items()))
        case list() | tuple():
            return tuple(frozen(each) for each in value)
        case set() | range():
            return frozenset(value)
        case GeneratorType():  # where it is, its variables, and those of the generator from which it yields
            if value.gi_frame is None:
                return None
            variables = {name: each for name, each in value.gi_frame.f_locals.items() if name != "self"}
            at = value.gi_frame.f_code.co_name, value.gi_frame.f_lasti
            return at, frozen(variables), frozen(value.gi_yieldfrom)
        case FunctionType() | Setting():
            return None
        case Survivor() | views.Form() | views.Await():
            return frozen(vars(value))
        case Membership():
            return value.view, tuple(value.ranks)
    return value


@dataclass
class State:
    """A state of the run: that of each rank (None: it is lost), and its events on their way to the tracker.

    memberships: that a rank may find. seen: of each rank, the index of the last one it has found.
    sent: the values that a rank has sent in a view. left: the views and ranks that are gone.
    """

    locals: list[Local | None]
    events: list[tuple[Report, ...]]
    owner: Owner
    memberships: tuple[Owner, ...]
    seen: list[int]
    sent: dict[tuple[int, int], tuple[Any, ...]]
    left: set[tuple[int, int]]
    losses: int
    returns: int

    def copy(self) -> State:
        places = {"sent": dict(self.sent), "left": set(self.left)}
        return replace(self, locals=[*self.locals], events=[*self.events], seen=[*self.seen], **places)

    @property
    def key(self) -> Any:
        parts = (*self.locals, *self.events, *self.seen, self.losses, self.returns)
        return parts, self.owner, self.memberships, frozenset(self.sent.items()), frozenset(self.left)


class Violation(Exception):
    """A property does not hold."""


class Model:
    """The states of a setting and the steps between them."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        same: dict[Any, Any] = {}  # by fingerprint

        def advance(key: tuple[Any, ...], outcomes: tuple[Any, ...]) -> tuple[Local, list[Any]]:
            after = Local(*key, outcomes)
            return same.setdefault(after.fingerprint, after), after.effects

        def track(owner: Owner, rank: int, report: Report) -> Owner:
            tracker = deepcopy(owner.tracker)
            tracker.add(Event(0.0, "", rank, "", report.kind, dict(report.fields)))
            after = Owner(tracker)
            return same.setdefault(after.fingerprint, after)

        self._advanced, self._tracked = cache(advance), cache(track)
        self._is_superseded = cache(lambda local, owner: local.survivor.superseded(owner.membership))

    def initial(self) -> State:
        size = self.setting.ranks
        owner = Owner(MembershipTracker(dict.fromkeys(range(size), ""), range(0), {}))
        for rank in range(size):
            owner = self._tracked(owner, rank, Report("train_start"))
        sent: dict[tuple[int, int], tuple[Any, ...]] = {(0, rank): () for rank in range(size)}
        state = State([None] * size, [()] * size, owner, (owner,), [0] * size, sent, set(), 0, 0)
        for rank in range(size):
            self._arrive(state, rank, *self._advanced((self.setting, rank, 0), ()))
        if self.setting.lost:
            (state,) = self._stepped(state, size - 1, state.locals[-1])
            self._lose(state, size - 1)
        return state

    def next(self, state: State) -> list[State]:
        """The states after a step of a rank or the tracker, a loss or a return."""
        disturbed, after = [*self._disturbed(state)], []
        calm = not disturbed and not any(state.events) and not self.setting.delayed
        for rank, local in enumerate(state.locals):
            if local and local.step:
                steps = [*self._stepped(state, rank, local)]
                closes = isinstance(local.step, Exchange) and local.step.tag[0] == "close"
                if calm and len(steps) == 1 and not closes:
                    return steps  # nothing can come between any more, so the order does not matter
                after += steps
            if state.events[rank]:
                after.append(tracked := state.copy())
                report, *later = state.events[rank]
                tracked.events[rank] = tuple(later)
                self._add(tracked, rank, report)
        # Ranks that wait to join are stopped when the others finish.
        waiting = {rank for rank, each in enumerate(state.locals) if each and each.step} - state.owner.idle
        if not after and waiting:
            raise Violation("deadlock")
        return after + disturbed

    def _disturbed(self, state: State) -> Iterator[State]:
        for rank, local in enumerate(state.locals):
            if local and local.step and state.losses < self.setting.losses:
                self._lose(after := state.copy(), rank)
                after.losses += 1
                yield after
            if not local and rank in state.owner.returning and state.returns < self.setting.returns:
                after, incarnation = state.copy(), state.owner.returning[rank]
                self._add(after, rank, Report("waiting", (("incarnation", incarnation),)))
                self._arrive(after, rank, *self._advanced((self.setting, rank, incarnation), ()))
                after.returns += 1
                yield after

    def _lose(self, state: State, rank: int) -> None:
        state.locals[rank] = None
        state.left |= {place for place in state.sent if place[1] == rank}
        state.events[rank] += (Report("died"),)

    def _add(self, state: State, rank: int, report: Report) -> None:
        before, state.owner = state.owner, self._tracked(state.owner, rank, report)
        if report.kind == "died" and state.owner is before:  # this death ends the run
            state.locals = [None for _ in state.locals]
            state.losses, state.returns = self.setting.losses, self.setting.returns
        if not self.setting.delayed:
            state.memberships = (state.owner,)
        elif state.owner.membership != before.membership:
            state.memberships += (state.owner,)

    def _stepped(self, state: State, rank: int, local: Local) -> Iterator[State]:
        """A rank's step ends, in each way in which it can."""
        step, view, group = local.step, local.survivor.view, sorted(local.survivor.group)
        looks = [*enumerate(state.memberships)][state.seen[rank] :]
        if isinstance(step, views.Await):
            ready = [(index, owner) for index, owner in looks if step.ready(owner.membership)]
            yield from (self._moved(state, rank, local, owner, index) for index, owner in ready)
            return
        arrived = all((view, other) in state.sent for other in group)
        broken = any((view, other) in state.left for other in group)
        if isinstance(step, views.Form):
            broken = broken and arrived
            if arrived:
                yield self._moved(state, rank, local, None)
        else:
            number = len(state.sent[view, rank]) - 1
            sent = [state.sent[view, each] for each in (group if step.source is None else [step.source])]
            if all(len(each) > number for each in sent):
                yield self._moved(state, rank, local, tuple(each[number].value for each in sent))
        if broken:
            yield self._moved(state, rank, local, BROKEN)
            return
        for index, owner in looks:
            if self._is_superseded(local, owner):
                yield self._moved(state, rank, local, BROKEN, index)

    def _moved(self, state: State, rank: int, local: Local, outcome: Any, seen: int = -1) -> State:
        after = state.copy()
        after.seen[rank] = max(seen, after.seen[rank])
        advanced = self._advanced(local.key, (*local.outcomes, outcome))
        self._arrive(after, rank, *advanced, before=local.survivor.view)
        return after

    def _arrive(self, state: State, rank: int, local: Local, effects: list[Any], before: int = 0) -> None:
        """A rank begins its next step. before: the view in which it has ended the last one."""
        state.locals[rank] = local
        for effect in effects:
            match effect:
                case views.Leave():
                    state.left.add((before, rank))
                case Report("done"):
                    state.events[rank] += (effect,)
                case Report():  # its rank does nothing that others notice while it is on its way
                    self._add(state, rank, effect)
        if local.failure:
            raise Violation(f"rank {rank} ends: {local.failure}")
        view = local.survivor.view
        match local.step:
            case None:
                state.left.add((view, rank))
            case views.Form():
                state.sent[view, rank] = ()
            case Exchange(tag):
                number = len(state.sent[view, rank])
                for (other_view, other), found in state.sent.items():
                    if other_view == view and len(found) > number and found[number].tag != tag:
                        raise Violation(f"ranks {rank}, {other} exchange {tag}, {found[number].tag}")
                state.sent[view, rank] += (local.step,)
        for other, each in enumerate(state.locals):
            for number, own in local.recent.items():
                if each and own != (its := each.recent.get(number, own)):
                    raise Violation(f"ranks {rank}, {other} differ in operation {number}: {own}, {its}")
        # Forget the groups that no rank is in or can enter.
        oldest = min(state.memberships[seen].membership.view for seen in state.seen)
        used = {view for view, _ in state.sent.keys() - state.left}
        for place in [*state.sent]:
            if place[0] < oldest and place[0] not in used:
                del state.sent[place]
                state.left.discard(place)


class Found(NamedTuple):
    states: int
    wrong: str | None = None  # what is wrong in the first state in which something is


def search(setting: Setting, most: int | None = None) -> Found:
    """Try every order of steps, up to `most` states. Every state must lead to the end of the run."""
    model = Model(setting)
    queue = deque([model.initial()])
    known = {queue[0].key}
    while queue and (most is None or len(known) < most):
        state = queue.popleft()
        try:
            following = model.next(state)
        except Violation as violation:
            steps = [f"rank {rank}: {each and each.step}" for rank, each in enumerate(state.locals)]
            return Found(len(known), "\n".join([str(violation), *steps, str(state.owner.membership)]))
        for each in following:
            if (key := each.key) not in known:
                known.add(key)
                queue.append(each)
    return Found(len(known))
