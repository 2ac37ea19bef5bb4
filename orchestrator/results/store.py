"""Layout of a results directory, and reading and atomic writing of its files."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, TypeVar

from filelock import FileLock, Timeout
from pydantic import BaseModel, ConfigDict, ValidationError

from orchestrator.errors import InputError, StorageError, is_full, output_error, storage_trouble
from orchestrator.results.records import RunResult
from orchestrator.sweeps.equal_cpus import EqualShare
from orchestrator.sweeps.lab import BlockRecord, Lab
from orchestrator.sweeps.question import Question
from orchestrator.sweeps.stages import Stages
from orchestrator.sweeps.tolerance import DEFAULT, Tolerances
from trainer.core.cgroup import NodeUsage
from trainer.core.json_files import JsonLimits, read_json_below
from trainer.core.record import checked, first_error, parse_object
from trainer.core.registry import IMPORTED
from trainer.core.regular_files import RefusedFile, other_kind
from trainer.core.trace import TraceError, read_trace, trace_path
from trainer.spec.output_limits import OutputLimits
from trainer.spec.run_spec import RunSpec
from trainer.spec.traces import untraced_reason

T = TypeVar("T", bound=BaseModel)

LOOK_S = 0.2  # `is_claimed` may hold the lock for a moment
# A result of 16,384 ranks has 20 MB, and 8 MB for each epoch.
RESULT = JsonLimits(bytes=2**28, values=2**23)
QUICK = JsonLimits(bytes=2**22, values=2**17)  # of a result that pydantic reads by itself
USAGE = JsonLimits(bytes=2**20, values=2**15)  # about 300 bytes of each of at most 1024 nodes
STORED = JsonLimits(bytes=2**25, values=2**19)  # of any other file that is read as a whole


class SweepRecord(BaseModel):
    """The sweep of a results directory, stored in sweep.json.

    keys: the runs in the order of the file. order: the runs in the order of their execution;
    older records lack it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    name: str
    description: str
    source: str  # the sweep file's text
    overrides: list[str]  # options that changed it, as typed
    keys: list[str]
    order: list[str] = []
    environment: dict[str, Any]
    lab: Lab | None = None
    blocks: list[BlockRecord] = []
    equal_cpus: EqualShare | None = None  # what `cpus: equal` of the source was replaced by
    tolerance: Tolerances = DEFAULT  # differences that do not matter
    questions: list[Question] = []  # that the report answers first
    stages: Stages | None = None  # of a sweep that adds seeds until its choice is decided


@dataclass(frozen=True)
class RunPaths:
    """The files of one run."""

    directory: Path

    @property
    def spec(self) -> Path:
        return self.directory / "spec.json"

    @property
    def plan(self) -> Path:
        return self.directory / "plan.json"

    @property
    def result(self) -> Path:
        return self.directory / "result.json"

    @property
    def unusable_result(self) -> Path:
        """A result that could not be used, kept when the run is repeated."""
        return self.directory / "result.unusable.json"

    @property
    def events(self) -> Path:
        return self.directory / "events.jsonl"

    @property
    def weights(self) -> Path:
        return self.directory / "weights.npy"

    def trace(self, rank: int) -> Path:
        """What a rank did during training."""
        return trace_path(self.directory, rank)

    @property
    def live(self) -> Path:
        """The directory that ranks or the coordinator write to; exists only during the run."""
        return self.directory / "live"

    @property
    def warm(self) -> Path:
        """The directory by which warm containers get the runs of a sweep; exists only while they do."""
        return SweepPaths(self.directory.parent).warm

    @property
    def allocation(self) -> Path:
        """The directory of the job that all runs of a sweep share: its script, its logs, its requests."""
        return self.directory.parent / "allocation"

    @property
    def code(self) -> Path:
        """The files of users' components, of all runs of the sweep, in a private directory."""
        return SweepPaths(self.directory.parent).code

    @property
    def checkpoints(self) -> Path:
        """Checkpoints from which an interrupted run resumes, in one directory per runtime."""
        return self.directory / "checkpoints"

    @property
    def usage(self) -> Path:
        """Usage of each container, one line of JSON each."""
        return self.directory / "usage.jsonl"

    @property
    def cluster_time(self) -> Path:
        """What a replay of the run's traces computed."""
        return self.directory / "cluster.json"

    @property
    def timeline(self) -> Path:
        """The run's wall and cluster time in the Chrome trace format."""
        return self.directory / "timeline.json"

    @property
    def windows(self) -> Path:
        """The part of the timeline that a report draws."""
        return self.directory / "timeline.window.json"

    def log(self, name: str) -> Path:
        """The console output of a node or a launcher, e.g. `log("node-0")`."""
        return self.directory / f"{name}.log"


@dataclass(frozen=True)
class SweepPaths:
    """The files of one sweep."""

    directory: Path

    @property
    def record(self) -> Path:
        return self.directory / "sweep.json"

    @property
    def predictions(self) -> Path:
        return self.directory / "predictions.json"

    @property
    def real_nodes(self) -> Path:
        """Where the runs are that calibrate the times of virtual nodes."""
        return self.directory / "real_nodes.json"

    @property
    def code(self) -> Path:
        """The files of users' components, which nodes read, in a private directory."""
        return self.directory / "code" / "files"

    @property
    def lock(self) -> Path:
        return self.directory / ".lock"

    @property
    def csv(self) -> Path:
        return self.directory / "results.csv"

    @property
    def epochs_csv(self) -> Path:
        return self.directory / "epochs.csv"

    @property
    def summary(self) -> Path:
        return self.directory / "summary.csv"

    @property
    def columns(self) -> Path:
        return self.directory / "columns.csv"

    @property
    def findings(self) -> Path:
        return self.directory / "findings.json"

    @property
    def markdown(self) -> Path:
        return self.directory / "report.md"

    @property
    def html(self) -> Path:
        return self.directory / "report.html"

    @property
    def plots(self) -> Path:
        return self.directory / "plots"

    @property
    def warm(self) -> Path:
        """The directories by which warm containers get their runs; exists only while they do."""
        return self.directory / ".warm"

    @property
    def warm_up_run(self) -> Path:
        """The directory of the run before the first one, whose result is dropped; exists only during it."""
        return self.directory / ".warm-up-run"

    def exported(self, to: str) -> Path:
        """Where results are exported in this format, unless another place is chosen."""
        return self.directory / "export" / to

    def run(self, key: str) -> RunPaths:
        return RunPaths(self.directory / key)


def write_atomic(path: Path, text: str) -> None:
    """Write a file atomically, also with respect to a crash or a power cut.

    Raises OSError with the file's name.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)  # of a process that was killed, or a link that leads elsewhere
        with open(draft, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        # That of `write` has no name, and those of others have the name of the draft or of its directory.
        raise OSError(error.errno, error.strerror, str(path)) from error


def check_output(path: Path, option: str) -> None:
    """Check that a file which a command writes after its work can be written.

    `write_atomic` replaces what is there, which may be a device: only a regular file may be replaced.

    Args:
        option: where another file can be named.

    Raises:
        InputError: something else is there, or the directory cannot be written to.
        StorageError: the disk is full.
    """
    try:
        if kind := other_kind(path):
            raise InputError(f"{path}: is {kind}, not a regular file; choose another {option}")
        (existing, *_) = (each for each in path.absolute().parents if each.exists())
        with TemporaryFile(dir=existing):
            pass
    except OSError as error:
        if is_full(error):
            raise StorageError(path, storage_trouble(error)) from error
        raise InputError(
            f"{path}: cannot be written ({error.strerror}); choose another {option}"
        ) from error


def make_private(directory: Path) -> None:
    """Create a directory that only this user can enter, or make an existing one so.

    Other users cannot reach what is in it, whatever its own permissions: containers, which have another
    user, get directories in it as mounts.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory.chmod(0o700)


def check_no_link(directory: Path) -> None:
    """Raise InputError if a directory to write to is a link, which may lead to files of anything else."""
    if directory.is_symlink():
        raise InputError(
            f"{directory}: is a symbolic link; remove it, so that nothing is written elsewhere"
        )


def make_world_writable(directory: Path) -> None:
    """Create a directory that containers can write to, which run under an unprivileged UID.

    It must be in a private one. It is sticky, so that nodes cannot replace what others have written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o1777)


class UnusableFile(InputError):
    """A stored file is damaged, unreadable or of another version. reason: why, without its path."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason


def read_of_run(path: Path, limits: JsonLimits = STORED) -> bytes:
    """The content of a file in a run's directory, through no link below the results directory.

    Ranks, and whoever has sent the directory, may have put anything there. Raises OSError as `read_below`.
    """
    return read_json_below(path.parent.parent, f"{path.parent.name}/{path.name}", limits)


def _result_of_run(path: Path) -> bytes:
    return read_of_run(path, RESULT)


def read_result(path: Path) -> RunResult | None:
    """The result in the file; None if there is no file. Raises UnusableFile."""
    result = _read_quickly(path) or read_stored(RunResult, path, _result_of_run)
    if result is not None:
        try:
            spec = result.run
        except ValidationError as error:
            raise UnusableFile(path, f"is of another version: spec.{first_error(error)}") from error
        if field := _contradiction(result, spec):
            raise UnusableFile(path, f"is damaged: {field} contradicts the spec")
    return result


def _read_quickly(path: Path) -> RunResult | None:
    """The result in the file; None if it is not what pydantic reads by itself, whose messages are longer.

    A large sweep has 100 MB of results. `read_stored` takes twice the time, since it makes Python objects
    first. In a large file, each error of pydantic would make the Python objects of the whole file.
    """
    with suppress(OSError, ValueError):  # which pydantic's error is, too
        result = RunResult.model_validate_json(read_of_run(path, QUICK))
        json.dumps([result.spec, result.environment], allow_nan=False)  # the fields without a type
        return result
    return None


def _contradiction(result: RunResult, spec: RunSpec) -> str | None:
    """The field that does not fit the run: a report computes with its numbers and lengths."""
    ranks: dict[str, list[int]] = {
        "ranks": [each.rank for each in result.ranks],
        "epochs": [each.rank for each in result.epochs],
        "links": [rank for each in result.links for rank in (each.source, each.to)],
        "certificate.parts": [each.rank for each in result.certificate.parts] if result.certificate else [],
    }
    for name, found in ranks.items():
        if any(not 0 <= rank < spec.world_size for rank in found):
            return f"a rank in {name}"
    for number, rank in enumerate(result.ranks):
        for name, values in (("bytes_to", rank.bytes_to), ("wait_s_by_rank", rank.wait_s_by_rank)):
            if values is not None and len(values) != spec.world_size:
                return f"ranks.{number}.{name}"
    for number, part in enumerate(result.certificate.parts if result.certificate else ()):
        if len(part.labels) != spec.dataset.class_count:
            return f"certificate.parts.{number}.labels"
    evaluated = {point.epoch for point in result.epochs}
    complete = not evaluated or (min(evaluated), max(evaluated)) == (1, len(evaluated))
    return None if complete else "epochs"


def read_spec(paths: RunPaths) -> RunSpec | None:
    """The spec of a run; None if there is no file. Raises UnusableFile."""
    return read_stored(RunSpec, paths.spec, read_of_run)


def read_stored(model: type[T], path: Path, content: Callable[[Path], bytes]) -> T | None:
    """The record in a file; None if there is no file. Raises UnusableFile."""
    try:
        data = content(path)
    except FileNotFoundError:
        return None
    except RefusedFile as error:
        raise UnusableFile(path, str(error.strerror)) from None
    except OSError as error:
        raise UnusableFile(path, f"cannot be read ({error.strerror})") from error
    try:
        return model.model_validate(parse_object(data.decode(), "content"))
    except ValidationError as error:
        raise UnusableFile(path, f"is damaged or of another version: {first_error(error)}") from error
    except ValueError as error:
        reason = str(error).removeprefix("content: ")
        raise UnusableFile(path, f"is damaged: {reason}") from error


def finished_runs(paths: SweepPaths) -> tuple[list[tuple[RunPaths, RunResult]], dict[str, UnusableFile]]:
    """The runs of a results directory that are ok, and why other results cannot be read, by key.

    Raises InputError if it has no sweep.
    """
    results: list[tuple[RunPaths, RunResult]] = []
    unusable: dict[str, UnusableFile] = {}
    for key in read_record(paths).keys:
        try:
            result = read_result(paths.run(key).result)
        except UnusableFile as error:
            unusable[key] = error
        else:
            results += [(paths.run(key), result)] if result is not None and result.status == "ok" else []
    return results, unusable


def read_usage(path: Path) -> list[NodeUsage]:
    """Usage of a run's containers; empty if none was recorded. Raises ValueError for an invalid file."""
    try:
        data = read_of_run(path, USAGE)
    except FileNotFoundError:
        return []
    except RefusedFile as error:
        raise ValueError(f"{path.name} {error.strerror}") from None
    return [checked(NodeUsage, parse_object(line, path.name), path.name) for line in data.splitlines()]


def untraced_ranks(paths: RunPaths, spec: RunSpec, simulated: bool = False) -> dict[int, str]:
    """Why ranks that should have written a trace have no usable one, by rank.

    simulated: whether its times are simulated.
    """
    found: dict[int, str] = {}
    if untraced_reason(spec):
        return found
    limits = OutputLimits.of(spec, simulated=simulated).trace
    for rank in range(spec.world_size):
        path = paths.trace(rank)
        try:
            header = read_trace(path, limits).header
        except TraceError as error:
            found[rank] = str(error).removeprefix(f"{path}: ") if path.exists() else "it was not saved"
            continue
        is_its_own = header.run == spec.key and header.rank == rank and header.size == spec.world_size
        if not is_its_own:
            found[rank] = "it is of another rank or run"
    return found


def read_record(paths: SweepPaths) -> SweepRecord:
    """The sweep of the directory. Raises InputError if it has none, UnusableFile if it cannot be read."""
    try:
        record = _read_record(paths)
    except UnusableFile as error:
        advice = "the command of its sweep writes it again"
        raise UnusableFile(paths.record, f"{error.reason}; {advice}") from error
    if record is None:
        raise InputError(f"{paths.directory}: no sweep.json here; is this a results directory?")
    return record


def _read_record(paths: SweepPaths) -> SweepRecord | None:
    """The sweep of the directory, which may itself be reached through a link."""
    return read_stored(
        SweepRecord, paths.record, lambda path: read_json_below(path.parent, path.name, STORED)
    )


def check_same_sweep(
    paths: SweepPaths, name: str, keys: Collection[str], code: Mapping[str, Any] | None = None
) -> None:
    """Raise InputError if the directory has finished runs that a report of this sweep would not show.

    The record of the directory is replaced by that of the sweep. If it is absent or damaged, all runs in
    the directory count.

    Args:
        name: the name of the sweep. keys: the keys of its runs. code: what identifies the code of each of
            its imported components, by their names.
    """
    try:
        record = _read_record(paths)
    except UnusableFile:
        record = None
    recorded = (
        record.keys if record else [each.parent.name for each in paths.directory.glob("*/result.json")]
    )
    finished = [key for key in recorded if _is_finished(paths.run(key).result)]
    lost = [key for key in finished if key not in keys]
    if record and record.name != name and finished:
        raise InputError(
            f"{paths.directory}: has {len(finished)} finished runs of another sweep, {record.name!r}; "
            "choose another --out"
        )
    if lost:
        many = f"{paths.directory}: its report would lose {len(lost)} of {len(finished)} finished runs"
        specs = [result.spec for key in lost if (result := read_result(paths.run(key).result))]
        before = {name: known for spec in specs for name, known in imported_code(spec).items()}
        changed = [name for name, known in (code or {}).items() if before.get(name, known) != known]
        if changed:
            raise InputError(
                f"{many}: the code or the data of {', '.join(changed)} has changed since; choose another "
                "--out"
            )
        raise InputError(f"{many}, which this command leaves out; choose another --out, or include them")


def imported_code(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What identifies the code and the data of the imported components of a run's spec, by their names."""
    forms = [form for form in spec.values() if isinstance(form, dict) and IMPORTED in form]
    return {form["name"]: [form[IMPORTED].get(what) for what in ("code", "data")] for form in forms}


def _is_finished(path: Path) -> bool:
    try:
        result = read_result(path)
    except UnusableFile:
        return False
    return result is not None and result.status == "ok"


def is_claimed(paths: SweepPaths) -> bool:
    """Whether a sweep runs in the results directory. Writes nothing."""
    try:
        lock = os.open(paths.lock, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


@contextmanager
def claimed(paths: SweepPaths) -> Iterator[None]:
    """Lock the results directory for one sweep, and remove it again if the sweep has written nothing.

    Raises InputError if it is in use or cannot be written, StorageError if the disk is full.
    """
    directory = paths.directory
    try:
        created = [each for each in (directory, *directory.parents) if not each.exists()]
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(paths.lock, timeout=LOOK_S)
        lock.acquire()
        os.utime(paths.lock, follow_symlinks=False)  # who follows the sweep sees when it began
    except Timeout:
        raise InputError(
            f"{directory}: in use by another sweep; wait for it or choose another --out"
        ) from None
    except OSError as error:
        raise output_error(directory, error) from None
    try:
        yield
    finally:
        with suppress(OSError):  # the directory was removed during the sweep
            if created and [*directory.iterdir()] == [paths.lock]:
                paths.lock.unlink()
        lock.release()
        with suppress(OSError):  # the first that is not empty
            for each in created:
                each.rmdir()
