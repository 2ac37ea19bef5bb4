"""The clusters of a sweep: runs of the same kind share one, the others get one of their own."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from orchestrator.results.store import RunPaths
from orchestrator.runtimes.base import Cluster, Runtime
from orchestrator.runtimes.launch_plan import ClusterPlan, LaunchPlan
from trainer.spec.run_spec import RunSpec


@dataclass(frozen=True)
class Lease:
    """A cluster while a run uses it.

    Attributes:
        cluster: the cluster.
        replaced: why it replaces another one that has failed; None if it replaces none.
    """

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
        self._kept: list[tuple[ClusterPlan, Cluster]] = []  # in the order of their last use

    def expect(self, runs: Sequence[RunSpec]) -> None:
        """Note the runs to come: a shared cluster is large enough for all that can use it."""
        self._peers.clear()
        for run in runs:
            if (kind := self.runtime.kind(run)) is not None:
                self._peers.setdefault(kind, []).append(run)

    def plan(self, spec: RunSpec, paths: RunPaths, data_dir: Path) -> LaunchPlan:
        """What starts a run, and its cluster. Starts nothing."""
        return self.runtime.plan(spec, paths, data_dir, self._peers.get(self.runtime.kind(spec), ()))

    @contextmanager
    def lease(self, plan: LaunchPlan) -> Iterator[Lease]:
        """A cluster for a run: one that is kept, or a new one. Raises InputError if it cannot be created.

        A cluster that other runs cannot use is deleted at the end of the block.
        """
        cluster, replaced = self._take(plan.cluster)
        lease = Lease(cluster or self._created(plan), replaced)
        try:
            yield lease
        except BaseException:
            lease.cluster.delete()
            raise
        if plan.cluster.shared:
            self._kept.append((plan.cluster, lease.cluster))
        else:
            lease.cluster.delete()

    def _take(self, plan: ClusterPlan) -> tuple[Cluster | None, str | None]:
        """The kept cluster for a plan, if it can take another run, and why it cannot if it has failed."""
        for kept in self._kept:
            if kept[0] == plan:
                if kept[1].ready():
                    self._kept.remove(kept)
                    return kept[1], None
                self._delete(kept)
                return None, kept[1].failure
        return None, None

    def _delete(self, kept: tuple[ClusterPlan, Cluster]) -> None:
        kept[1].delete()
        self._kept.remove(kept)  # afterwards: `close` repeats what was interrupted

    def _created(self, plan: LaunchPlan) -> Cluster:
        limit = self.runtime.max_warm_nodes
        if plan.cluster.shared and limit is not None:  # those used longest ago make room
            while self._kept and sum(kept.size for kept, _ in self._kept) + plan.cluster.size > limit:
                self._delete(self._kept[0])
        return self.runtime.create(plan)

    def close(self) -> None:
        """Delete all that are kept, and release what they used. Idempotent."""
        while self._kept:
            self._delete(self._kept[-1])
        self.runtime.close()

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
