"""The clusters of a sweep: runs whose plans have equal clusters share one, the others have their own."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.base import Cluster, Runtime
from orchestrator.runtimes.launch_plan import ClusterPlan, LaunchPlan
from trainer.spec.run_spec import RunSpec


@dataclass(frozen=True, eq=False)
class Held:
    """A cluster that exists, and the plan that it was created for."""

    plan: ClusterPlan
    cluster: Cluster


@dataclass(frozen=True)
class Lease:
    """A cluster while a run uses it. replaced: why it replaces another one that has failed, if it does."""

    cluster: Cluster
    replaced: str | None


class Clusters(AbstractContextManager["Clusters"]):
    """The clusters of a runtime: those that further runs can use are kept. Leaving the block closes all.

    Attributes:
        runtime: creates them.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._peers: dict[Hashable, list[RunSpec]] = {}  # the expected runs of a kind
        self._held: list[Held] = []  # in the order of their last use

    def expect(self, runs: Sequence[RunSpec]) -> None:
        """Note the runs to come: a shared cluster is large enough for all that can use it."""
        self._peers.clear()
        for run in runs:
            if (kind := self.runtime.kind(run)) is not None:
                self._peers.setdefault(kind, []).append(run)

    def plan(self, spec: RunSpec, paths: RunPaths, data_dir: Path) -> LaunchPlan:
        """What starts a run, and its cluster. Starts nothing."""
        return self.runtime.plan(spec, paths, data_dir, self._peers.get(self.runtime.kind(spec), ()))

    def has(self, plan: ClusterPlan) -> bool:
        """Whether there is a cluster for a plan, which may have to be replaced."""
        return any(each.plan == plan for each in self._held)

    @contextmanager
    def lease(self, plan: LaunchPlan) -> Iterator[Lease]:
        """A cluster for a run: one that is kept, or a new one. Raises InputError if it cannot be created.

        At the end of the block, a cluster that is not shared is deleted, and after an exception any.
        """
        held, replaced = self._take(plan.cluster)
        if held is None:
            held = self._create(plan)
        try:
            yield Lease(held.cluster, replaced)
        except BaseException:
            self._delete(held)
            raise
        if not plan.cluster.shared:
            self._delete(held)

    def _take(self, plan: ClusterPlan) -> tuple[Held | None, str | None]:
        """The cluster for a plan, if it can take another run, and why it cannot if it has failed."""
        held = next((each for each in self._held if each.plan == plan), None) if plan.shared else None
        if held is None:
            return None, None
        if held.cluster.ready():
            self._held.append(self._held.pop(self._held.index(held)))
            return held, None
        self._delete(held)
        return None, held.cluster.failure

    def _create(self, plan: LaunchPlan) -> Held:
        limit = self.runtime.max_warm_nodes
        if plan.cluster.shared and limit is not None:  # those used longest ago make room
            while self._held and sum(each.plan.size for each in self._held) + plan.cluster.size > limit:
                self._delete(self._held[0])
        held = Held(plan.cluster, self.runtime.create(plan))
        self._held.append(held)
        return held

    def _delete(self, held: Held) -> None:
        if held in self._held:
            held.cluster.delete()
            self._held.remove(held)  # not before, so that `close` repeats what was interrupted

    def close(self) -> None:
        """Delete all clusters, and release what they used. Idempotent.

        After an exception, such as that of Ctrl-C, the other clusters are deleted, too. The deletion that
        it interrupted is tried once more.
        """
        with ExitStack() as stack:
            stack.callback(self.runtime.close)
            for held in [*self._held] * 2:
                stack.callback(self._delete, held)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def warm_groups(runtime: Runtime, runs: Sequence[RunSpec]) -> list[list[RunSpec]]:
    """The runs in groups; the nodes for all runs of a group can be warm at the same time."""
    if runtime.max_warm_nodes is None:
        return [list(runs)]
    sets: dict[Hashable | None, list[RunSpec]] = {}
    for run in runs:
        sets.setdefault(runtime.kind(run), []).append(run)
    groups: list[list[RunSpec]] = []
    room: list[int] = []  # nodes that a group can still have
    for kind, members in sets.items():
        size = 0 if kind is None else max(map(runtime.size, members))  # others are in any group
        fitting = (number for number, left in enumerate(room) if left >= size)
        number = next(fitting, len(room))
        if number == len(room):
            groups.append([])
            room.append(runtime.max_warm_nodes)
        groups[number] += members
        room[number] -= size
    return groups
