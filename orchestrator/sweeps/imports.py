"""Components from import paths: `./mine.py:Net`, `package.module:Net`, `torchvision:resnet18`.

Loading a sweep runs no users' code in this process. A process of `trainer.inspection` tries each component
once, with the software of the nodes, and says what a spec must know of it. The files that it needs are
copied to a folder named after their content; the results directory keeps it, and nodes read it.
"""

from __future__ import annotations

import ast
import os
import select
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import file_digest, sha256
from importlib.metadata import entry_points
from pathlib import Path
from shlex import quote
from typing import Any

import psutil
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from orchestrator.errors import InputError
from orchestrator.shipped import python_path
from orchestrator.sweeps.requirements import missing, read_requirements
from orchestrator.sweeps.validation import detail_lines
from trainer.core.registry import IMPORTED, ImportedComponent, is_import_path, shortened
from trainer.imported.source import CODE
from trainer.inspection.messages import FIELDS, Answer, Request
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

Values = dict[str, Any]

ANSWER_S = 600.0  # in which a component must have been tried
MOST_BYTES = 2**30  # of the files of a component
STAGE = "shardyard-code-"
SAMPLES = "samples"  # the directory with samples of datasets
FIT = ("model", "dataset", "loss")  # the fields of a run that must fit together
SERIAL = "serial"

GROUPS = {"loss": "losses", "strategy": "strategies"}  # entry points; the others have an s


@dataclass(frozen=True)
class Inspection:
    """What to start to try components: a process that reads requests and writes answers.

    directories: that components are in, first that of the sweep file. stage: where the files of components
    are copied to, with a directory for samples that the process writes. data_dir: the data directory.
    requirements: of the sweep; None: none.
    """

    directories: Sequence[Path]
    stage: Path
    data_dir: Path
    requirements: Path | None = None


Command = Callable[[Inspection], Sequence[str]]


def local_command(inspection: Inspection) -> Sequence[str]:
    """Try components in a process of this machine. Raises InputError if a package is missing."""
    path = inspection.requirements
    if path is not None and (absent := missing(read_requirements(path))):
        raise InputError(f"{path}: not installed: {', '.join(absent)}; pip install -r {quote(str(path))}")
    return [sys.executable, "-m", "trainer.inspection"]


@dataclass(frozen=True)
class ImportName:
    """What a component's name in a sweep file refers to.

    label: in reports and in the run key. directory: in which the module's file is. module, attribute: what
    is imported; a module that is a file ends in .py.
    """

    label: str
    directory: Path
    module: str
    attribute: str

    @classmethod
    def of(cls, field: str, name: str, directory: Path) -> ImportName | None:
        """The import that a name of a field means; None if it is that of a registered component."""
        if name in REGISTRIES[field].entries:
            return None
        if name.endswith(".py"):
            defined = _defined(directory / Path(name).expanduser())
            raise ValueError(f"names a file alone; write {name}:NAME{defined}")
        if not is_import_path(name):
            path = REGISTRIES[field].paths.get(name) or _entry_points(field).get(name)
            if path is None:
                return None
            module, _, attribute = path.partition(":")
            return cls(name, directory, module, attribute)
        module, _, attribute = name.rpartition(":")
        is_file = module.endswith(".py")
        if not attribute.isidentifier() or not (
            is_file or all(part.isidentifier() for part in module.split("."))
        ):
            raise ValueError("no import path; allowed: FILE.py:NAME, PACKAGE.MODULE:NAME, torchvision:NAME")
        if not is_file:
            return cls(name, directory, module, attribute)
        file = (directory / Path(module).expanduser()).resolve()
        if not file.is_file():
            raise ValueError(f"there is no file {file}")
        return cls(f"{_short(file, directory)}:{attribute}", file.parent, file.name, attribute)


def _short(file: Path, directory: Path) -> str:
    """The file's path, from `directory` if it is below it."""
    return str(file.relative_to(directory) if file.is_relative_to(directory) else file)


def _defined(file: Path) -> str:
    """The classes and functions that a file defines, for a message; the file is not run."""
    try:
        statements = ast.parse(file.read_bytes()).body
    except (OSError, ValueError, SyntaxError):
        return ""
    kinds = (ast.ClassDef, ast.FunctionDef)
    names = [each.name for each in statements if isinstance(each, kinds) and not each.name.startswith("_")]
    return f"; it defines {shortened(names)}" if names else ""


@lru_cache
def _entry_points(field: str) -> dict[str, str]:
    """Components of installed packages: name -> import path."""
    return {
        each.name: each.value for each in entry_points(group=f"shardyard.{GROUPS.get(field, field + 's')}")
    }


def is_users(field: str, value: Any) -> bool:
    """Whether a value of a field names a user's component. Reads no file."""
    name = _form(value).get("name")
    if not isinstance(name, str) or name in REGISTRIES[field].entries:
        return False
    return is_import_path(name) or name in {**REGISTRIES[field].paths, **_entry_points(field)}


def short_path(name: str) -> str:
    """`mine.py:Net` for `./mine.py:Net`, as runs name it; other names stay."""
    module, _, attribute = name.rpartition(":")
    return f"{os.path.normpath(module)}:{attribute}" if module.endswith(".py") else name


def from_here(value: Any) -> Any:
    """A value of an option: an import path of a file counts from the current directory, not the sweep's."""
    form = _form(value)
    module, _, attribute = str(form.get("name", "")).rpartition(":")
    if not module.endswith(".py"):
        return value
    name = f"{Path(module).expanduser().absolute()}:{attribute}"
    return {**form, "name": name} if isinstance(value, dict) else name


class Imports:
    """The components of a sweep that are users'. Starts a process when it meets the first.

    Attributes:
        directory: of the sweep file; import paths count from it.
    """

    def __init__(
        self, directory: Path, data_dir: Path = Path("data"), command: Command = local_command
    ) -> None:
        self.directory, self._data_dir, self._command = directory.resolve(), data_dir.resolve(), command
        self.requirements: Path | None = None
        self._mounted = [self.directory]
        self._answers: dict[str, Answer] = {}
        self._found: dict[str, _Found] = {}
        self._process: subprocess.Popen[str] | None = None
        self._stage: Path | None = None

    @property
    def code(self) -> Path | None:
        """The directory with the files of the components; None if no run has any."""
        return self._stage

    def use_here(self) -> None:
        """Let this process run the components, as the commands that start no nodes do."""
        if self._stage is not None:
            os.environ |= {CODE: str(self._stage), "SHARDYARD_DATA": str(self._data_dir)}

    def resolve(self, values: Values) -> Values:
        """The fields of a run, with what a spec must know of users' components.

        Raises:
            ComponentError: One cannot be used.
        """
        named = {field: name for field in FIELDS if (name := self._name(field, values.get(field)))}
        if not named:
            return values
        forms = {field: _form(values.get(field, RunSpec.model_fields[field].default)) for field in FIELDS}
        if not all(_is_valid(field, forms[field]) for field in FIELDS if field not in named):
            # The check of the run reports those; it cannot know users' components.
            placeholder = {"strategy": SERIAL} if "strategy" in named else {}
            return {field: value for field, value in values.items() if field not in named} | placeholder
        run, found = _Run.of(values), {}
        for field, name in named.items():
            found[field] = self._component(field, name, forms, run)
            forms[field] = found[field].form
        folders = self._folders(found)
        for field, each in found.items():
            forms[field] = each.in_folder(folders[each.name.directory])
        trains = "strategy" in named or REGISTRIES["strategy"].parse(forms["strategy"]).trains
        if trains and any(field in named for field in FIT):
            self._check_fit(forms, named)
        return {**values, **{field: forms[field] for field in named}}

    def _name(self, field: str, value: Any) -> ImportName | None:
        form = _form(value) if value is not None else {}
        name = form.get("name")
        if not isinstance(name, str) or IMPORTED in form:
            return None
        try:
            return ImportName.of(field, name, self.directory)
        except ValueError as error:
            raise ComponentError(field, f"{name!r}: {error}") from error

    def _component(self, field: str, name: ImportName, forms: Mapping[str, Values], run: _Run) -> _Found:
        """What a run must know of a component, which is tried once. Raises ComponentError."""
        parameters = {key: value for key, value in forms[field].items() if key != "name"}
        needs = {"dataset": (), "strategy": ("model", "dataset")}.get(field, ("dataset",))
        request = Request(
            kind=field,  # type: ignore[arg-type]
            forms={each: forms[each] for each in needs},
            module=name.module,
            attribute=name.attribute,
            parameters=parameters,
            directory=str(name.directory),
            data_dir=str(self._data_dir),
            batch=self._batch("new") if field == "dataset" else self._batch_of(forms["dataset"]),
            ranks=run.ranks if field == "strategy" else 1,
            parts=min(run.ranks, 64) if field == "partitioner" else 1,
            batch_size=run.batch_size if field == "strategy" else 1,
        )
        key = request.model_dump_json()
        if key not in self._found:
            answer = self._asked(field, name.label, request)
            self._found[key] = found = _Found(name, answer, self._copied(field, name, answer))
            if field == "dataset":
                Path(self._batch("new")).rename(self._batch_of(found.form))
        return self._found[key]

    def _check_fit(self, forms: Mapping[str, Values], named: Mapping[str, ImportName]) -> None:
        """Raise ComponentError unless model, loss and dataset fit together."""
        request = Request(
            kind="fit",
            forms={field: forms[field] for field in FIT},
            batch=self._batch_of(forms["dataset"]),
        )
        self._asked(next(field for field in FIT if field in named), "", request)

    def _asked(self, field: str, label: str, request: Request) -> Answer:
        """The answer to a request, which is asked once. Raises ComponentError."""
        key, directory = request.model_dump_json(), Path(request.directory)
        seen = [*self._mounted, self._staged()]
        if request.directory and not any(directory.is_relative_to(each) for each in seen):
            self.close()  # the process may see mounted directories alone
            self._mounted.append(directory)
        if key not in self._answers:
            self._answers[key] = self._ask(field, label, key)
        answer = self._answers[key]
        if answer.invalid:
            raise ComponentError(field, "", answer.invalid, answer.allowed)
        if answer.error:
            raise ComponentError(field, f"{label}: {answer.error}" if label else answer.error)
        return answer

    def _ask(self, field: str, label: str, line: str) -> Answer:
        process = self._started()
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018
        with suppress(BrokenPipeError):
            process.stdin.write(line + "\n")
            process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], ANSWER_S)
        answer = process.stdout.readline() if ready else ""
        if not answer:
            self.close()
            cause = "ended" if ready else f"did not answer within {ANSWER_S:g} s"
            subject = f"{label}: " if label else ""
            raise ComponentError(field, f"{subject}the process that tries it {cause}; see its output above")
        return Answer.model_validate_json(answer)

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            inspection = Inspection(self._mounted, self._staged(), self._data_dir, self.requirements)
            environment = {
                **os.environ,
                "PYTHONPATH": python_path(),
                CODE: str(self._staged()),
                "SHARDYARD_DATA": str(self._data_dir),
            }
            self._process = subprocess.Popen(
                [*self._command(inspection)],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,  # only the orchestrator handles Ctrl-C
            )
            weakref.finalize(self, _end, self._process)
        return self._process

    def _staged(self) -> Path:
        if self._stage is None:
            _remove_stale_stages()
            self._stage = Path(tempfile.mkdtemp(prefix=f"{STAGE}{os.getpid()}-"))
            self._stage.chmod(0o755)  # a container's user reads the code, and writes samples
            (self._stage / SAMPLES).mkdir()
            (self._stage / SAMPLES).chmod(0o777)
            weakref.finalize(self, shutil.rmtree, self._stage, True)
        return self._stage

    def _batch(self, name: str) -> str:
        """A file for some samples of a dataset."""
        return str(self._staged() / SAMPLES / f"{name}.npz")

    def _batch_of(self, form: Values) -> str:
        """The file with samples of a resolved dataset; empty for a registered one."""
        return self._batch(form[IMPORTED]["data"]) if IMPORTED in form else ""

    def _copied(self, field: str, name: ImportName, answer: Answer) -> dict[str, str]:
        """Copy the component's files to a folder of its own. Returns their digests by their paths."""
        size = sum((name.directory / file).stat().st_size for file in answer.files)
        if size > MOST_BYTES:
            raise ComponentError(
                field,
                f"{name.label}: the files that it reads beside {name.module} have {size / 2**30:.1f} GiB; "
                f"allowed: {MOST_BYTES / 2**30:g} GiB; keep data in the data directory, which it gets as "
                "`data_dir`",
            )
        new, digests = self._staged() / "new", {}
        shutil.rmtree(new, ignore_errors=True)
        for file in answer.files:
            (new / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(name.directory / file, new / file)
            with (new / file).open("rb") as copy:
                digests[file] = file_digest(copy, "sha256").hexdigest()
        new.mkdir(exist_ok=True)
        folder = self._staged() / digest(digests, answer.module)
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
        return digests

    def _folders(self, found: Mapping[str, _Found]) -> dict[Path, str]:
        """The folder of each directory that the components of a run are in, which they share.

        Raises:
            ComponentError: Modules of several directories have the same name, and one would hide the other.
        """
        modules: dict[str, tuple[Path, dict[str, str]]] = {}
        for field, each in found.items():
            directory = each.name.directory
            for module, files in each.modules.items():
                other, same = modules.setdefault(module, (directory, files))
                if other != directory and same != files:
                    raise ComponentError(
                        field,
                        f"{each.name.label}: its directory {directory} and {other} have different modules "
                        f"{module}, of which a run can import one; rename one",
                    )
        folders = {}
        for directory in {each.name.directory for each in found.values()}:
            sharing = [each for each in found.values() if each.name.directory == directory]
            folders[directory] = self._united(sharing)
        return folders

    def _united(self, components: Sequence[_Found]) -> str:
        """A folder with the files of all components. Returns its name."""
        if len({each.code for each in components}) == 1:
            return components[0].code
        name = digest({file: each.files[file] for each in components for file in each.files})
        folder = self._staged() / name
        for each in () if folder.is_dir() else components:
            for file in each.files:
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                if not (folder / file).exists():
                    (folder / file).hardlink_to(self._staged() / each.code / file)
        return name

    def copy_to(self, directory: Path, runs: Iterable[RunSpec]) -> None:
        """Copy the files of the runs' components to a results directory, where nodes read them."""
        if self._stage is None:
            return
        components = (getattr(run, field) for run in runs for field in FIELDS)
        for folder in {each.imported.folder for each in components if isinstance(each, ImportedComponent)}:
            if not (directory / folder).exists():
                partial = directory / f".{folder}"
                shutil.rmtree(partial, ignore_errors=True)
                shutil.copytree(self._stage / folder, partial)
                partial.rename(directory / folder)
        if self.requirements is not None:
            shutil.copyfile(self.requirements, directory / "requirements.txt")
        for path in (directory, *directory.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)

    def close(self) -> None:
        """End the process. The copied files stay as long as this object."""
        if self._process is not None:
            _end(self._process)
            self._process = None


def digest(files: Mapping[str, str], more: str = "") -> str:
    """16 hex digits that identify the names of files and the digests of their content."""
    lines = [f"{file}\0{content}\0" for file, content in sorted(files.items())]
    return sha256("".join([more, *lines]).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class _Found:
    """A component that was tried. files: digests of those that it needs, by their paths."""

    name: ImportName
    answer: Answer
    files: Mapping[str, str]

    @cached_property
    def code(self) -> str:
        """What identifies its code, and the name of the folder with its files alone."""
        return digest(self.files, self.answer.module)

    @property
    def form(self) -> Values:
        """As a field of a run."""
        return self.in_folder(self.code)

    def in_folder(self, folder: str) -> Values:
        """As `form`, with the files in another folder, beside those of other components."""
        facts = {**self.answer.facts, "code": self.code, "folder": folder}
        return {"name": self.name.label, **self.answer.parameters, IMPORTED: facts}

    @cached_property
    def modules(self) -> dict[str, dict[str, str]]:
        """The files of each module and package that it can import by name."""
        found: dict[str, dict[str, str]] = {}
        for file, content in self.files.items():
            if file.endswith(".py") and file != self.name.module:
                found.setdefault(Path(file).parts[0].removesuffix(".py"), {})[file] = content
        return found


class ComponentError(Exception):
    """A user's component cannot be used.

    field: of the run. invalid: what is wrong with its parameters, and the allowed names.
    """

    def __init__(
        self, field: str, message: str, invalid: Sequence[Values] = (), allowed: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.field, self.message = field, message
        self.invalid, self.allowed = invalid, allowed

    def lines(self, place: Callable[[tuple[int | str, ...]], str]) -> Iterator[str]:
        """One line for each error. place: formats a location in the run."""
        if not self.invalid:
            yield f"{place((self.field,))}: {self.message}"
            return
        details = [{**each, "loc": (self.field, *each["loc"])} for each in self.invalid]
        yield from detail_lines(details, place, lambda _: self.allowed or ["no parameters"])


@dataclass(frozen=True)
class _Run:
    """What components depend on beside each other. Invalid values are left to the check of the run."""

    ranks: int
    batch_size: int

    @classmethod
    def of(cls, values: Values) -> _Run:
        def number(field: str, default: int) -> int:
            value = values.get(field, default)
            return value if type(value) is int and 0 < value <= 65536 else default

        return cls(number("nodes", 1) * number("processes_per_node", 1), number("batch_size", 32))


def _is_valid(field: str, form: Values) -> bool:
    """Whether a registered component has this form."""
    try:
        REGISTRIES[field].parse(form)
    except (ValidationError, PydanticCustomError):
        return False
    return True


def _form(value: Any) -> Values:
    return {"name": value} if isinstance(value, str) else dict(value) if isinstance(value, dict) else {}


def _remove_stale_stages() -> None:
    """Remove the directories of processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{STAGE}*"):
        pid = path.name.removeprefix(STAGE).partition("-")[0]
        if pid.isdigit() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _end(process: subprocess.Popen[str]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    if process.poll() is None:
        process.kill()
        process.wait()
