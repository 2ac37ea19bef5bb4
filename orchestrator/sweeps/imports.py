"""Components from import paths: `./mine.py:Net`, `package.module:Net`, `torchvision:resnet18`.

Loading a sweep runs no users' code in this process. `trainer.component_trials` in a sandbox tries each
component once, with the software of the nodes, and says what a spec must know of it. It is not trusted: its
answers are checked (`trainer/component_trials/messages.py`), and so is each file that it names. The files
that a component needs are copied to a folder named after their content; the results directory keeps it, and
nodes read it.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import time
import weakref
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from orchestrator.errors import InputError
from orchestrator.sandbox.base import Channel, Ended, Sandbox, SandboxError, TimedOut
from orchestrator.sandbox.local import LocalSandbox
from orchestrator.sweeps.requirements import missing, read_requirements
from orchestrator.sweeps.staged_code import StagedCode, digest
from orchestrator.sweeps.validation import detail_lines
from trainer.component_trials.messages import FIELDS, FIT, MAX_ANSWER, TrialAnswer, TrialRequest
from trainer.core.frames import ProtocolError
from trainer.core.record import checked, first_error
from trainer.core.registry import IMPORTED, ImportedComponent, is_import_path, shortened
from trainer.core.regular_files import RefusedFile, read_regular
from trainer.core.user_code import CODE
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

Values = dict[str, Any]

ANSWER_S = 600.0  # in which a component must have been tried
MIN_MEMORY_MB = 512  # of the process that tries components: Python and torch take half of it
SERIAL = "serial"
CONTROL = re.compile(r"[\0-\x1f\x7f-\x9f]")  # control characters

GROUPS = {"loss": "losses", "strategy": "strategies"}  # entry points; the others have an s


@dataclass(frozen=True)
class Inspection:
    """What a process that tries components must have.

    directories: those that components are in, first that of the sweep file. code: the directory that their
    files are copied to. data_dir: the data directory. memory_mb: the memory of a node, in MiB.
    requirements: the file with the requirements of the sweep; None: none.
    """

    directories: Sequence[Path]
    code: Path
    data_dir: Path
    memory_mb: int
    requirements: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {CODE: str(self.code), "SHARDYARD_DATA": str(self.data_dir)}


INSPECTION = ("trainer.component_trials",)
Figures = Literal["profile", "ranks", "partition"]
MakeSandbox = Callable[[Inspection], Sandbox]


def local_sandbox(inspection: Inspection) -> Sandbox:
    """Try components in a process of this machine. Raises InputError if a package is missing."""
    path = inspection.requirements
    if path is not None and (absent := missing(read_requirements(path))):
        raise InputError(f"{path}: not installed: {', '.join(absent)}; pip install -r {quote(str(path))}")
    return LocalSandbox(INSPECTION, inspection.environment)


@dataclass(frozen=True)
class ImportName:
    """What a component's name in a sweep file refers to.

    label: its name in reports and in the run key. directory: the one with the module's file. module,
    attribute: what is imported; a module that is a file ends in .py.
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
        if CONTROL.search(str(file)):
            raise ValueError(f"there are control characters in {str(file)!r}")
        if not file.is_file():
            raise ValueError(f"{file} is no regular file" if file.exists() else f"there is no file {file}")
        return cls(f"{_short(file, directory)}:{attribute}", file.parent, file.name, attribute)


def _short(file: Path, directory: Path) -> str:
    """The file's path, from `directory` if it is below it."""
    return str(file.relative_to(directory) if file.is_relative_to(directory) else file)


def _defined(file: Path) -> str:
    """The classes and functions that a file defines, for a message; the file is not run."""
    try:
        statements = ast.parse(read_regular(file)).body
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


def is_imported(run: RunSpec, field: str) -> bool:
    """Whether a field of a run is a user's component."""
    return isinstance(getattr(run, field), ImportedComponent)


def has_users(run: RunSpec) -> bool:
    """Whether a run has users' components, whose code this process does not run."""
    return any(is_imported(run, field) for field in FIELDS)


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
        directory: the directory of the sweep file; import paths count from it.
    """

    def __init__(
        self, directory: Path, data_dir: Path = Path("data"), make_sandbox: MakeSandbox = local_sandbox
    ) -> None:
        self.directory, self._data_dir, self._make = directory.resolve(), data_dir.resolve(), make_sandbox
        self.requirements: Path | None = None
        self._mounted = [self.directory]
        self._answers: dict[str, TrialAnswer] = {}
        self._found: dict[str, _Found] = {}
        self._samples: dict[str, Path] = {}  # of users' datasets, by the digest of their data
        self._staged: StagedCode | None = None
        self._sandbox: Sandbox | None = None
        self._channel: Channel | None = None
        self._memory_mb = MIN_MEMORY_MB

    @property
    def code(self) -> Path | None:
        """The directory with the files of the components; None if no run has any."""
        return self._staged.directory if self._staged else None

    def figures(self, kind: Figures, run: RunSpec, split_points: Sequence[str] = ()) -> TrialAnswer:
        """Figures of a run with users' components, from the process that tries them. Raises InputError."""
        spec, points = run.model_dump(mode="json"), [*split_points]
        request = TrialRequest(kind=kind, run=spec, split_points=points, data_dir=str(self._data_dir))
        try:
            return self._asked("", "", request)
        except ComponentError as error:
            raise InputError(error.reason) from error

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
        self._use_memory(run.memory_mb)
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
            raise ComponentError(field, str(error), repr(name)) from error

    def _component(self, field: str, name: ImportName, forms: Mapping[str, Values], run: _Run) -> _Found:
        """What a run must know of a component, which is tried once. Raises ComponentError."""
        parameters = {key: value for key, value in forms[field].items() if key != "name"}
        needs = {"dataset": (), "strategy": ("model", "dataset")}.get(field, ("dataset",))
        request = TrialRequest(
            kind=field,  # type: ignore[arg-type]
            forms={each: forms[each] for each in needs},
            module=name.module,
            attribute=name.attribute,
            parameters=parameters,
            directory=str(name.directory),
            data_dir=str(self._data_dir),
            batch="" if field == "dataset" else self._batch_of(forms["dataset"]),
            ranks=run.ranks if field == "strategy" else 1,
            parts=min(run.ranks, 64) if field == "partitioner" else 1,
            batch_size=run.batch_size if field == "strategy" else 1,
        )
        key = request.model_dump_json()
        if key not in self._found:
            answer = self._asked(field, name.label, request)
            self._found[key] = self._usable(field, _Found(name, answer, self._copied(field, name, answer)))
        return self._found[key]

    def _usable(self, field: str, found: _Found) -> _Found:
        """The component, whose samples are stored if it is a dataset. Raises ComponentError."""
        try:
            REGISTRIES[field].parse(found.form)
            samples = b64decode(found.answer.samples, validate=True)
        except (ValidationError, PydanticCustomError, ValueError) as error:
            reason = first_error(error) if isinstance(error, ValidationError) else str(error)
            raise ComponentError(field, reason, found.name.label) from error
        if field == "dataset" and (data := found.form[IMPORTED]["data"]) not in self._samples:
            self._samples[data] = self._stage().write(f"{len(self._samples)}.npz", samples)
        return found

    def _check_fit(self, forms: Mapping[str, Values], named: Mapping[str, ImportName]) -> None:
        """Raise ComponentError unless they fit together and are trained as the user's code is written."""
        request = TrialRequest(
            kind="fit",
            forms={field: forms[field] for field in FIT},
            batch=self._batch_of(forms["dataset"]),
        )
        self._asked(next(field for field in FIT if field in named), "", request)

    def _asked(self, field: str, label: str, request: TrialRequest) -> TrialAnswer:
        """The answer to a request, which is asked once. Raises ComponentError."""
        key, directory = request.model_dump_json(), Path(request.directory)
        seen = [*self._mounted, self._stage().directory]
        if request.directory and not any(directory.is_relative_to(each) for each in seen):
            self.close()  # the process may see mounted directories alone
            self._mounted.append(directory)
        if key not in self._answers:
            try:
                self._answers[key] = self._ask(request)
            except (Ended, TimedOut, ProtocolError, ValueError, SandboxError) as error:
                raise ComponentError(field, self._failure(error), label) from error
        answer = self._answers[key]
        if answer.invalid:
            raise ComponentError(field, "", label, [*map(dict, answer.invalid)], answer.allowed)
        if answer.error:
            raise ComponentError(field, answer.error, label)
        return answer

    def _ask(self, request: TrialRequest) -> TrialAnswer:
        """Raises Ended, TimedOut, ProtocolError, SandboxError, or ValueError for an invalid answer."""
        if self._channel is None:
            inspection = Inspection(
                self._mounted, self._stage().directory, self._data_dir, self._memory_mb, self.requirements
            )
            self._sandbox = self._make(inspection)
            self._channel = Channel(self._sandbox, MAX_ANSWER)
            weakref.finalize(self, self._channel.close)
        self._channel.renew()
        deadline = time.monotonic() + ANSWER_S
        self._channel.send(request.model_dump(), deadline)
        return checked(TrialAnswer, self._channel.receive(deadline), "its answer")

    def _failure(self, error: Exception) -> str:
        """Why there is no answer. Ends the process, from which another one might not come."""
        printed = self._sandbox.printed.line if self._sandbox else ""
        self.close()
        match error:
            case SandboxError():
                how = str(error)
            case TimedOut():
                how = f"the process that tries it did not answer within {ANSWER_S:g} s"
            case Ended() | ProtocolError():
                how = f"the process that tries it {error}"
            case _:
                how = f"the process that tries it sent what is no answer ({error})"
        return f"{how}; the last that it printed: {printed}" if printed else how

    def _use_memory(self, memory_mb: int) -> None:
        """Let components be tried with the memory of a node; with another one, in another process."""
        wanted = max(MIN_MEMORY_MB, memory_mb)
        if wanted != self._memory_mb:
            self.close()
            self._memory_mb = wanted

    def _stage(self) -> StagedCode:
        self._staged = self._staged or StagedCode()
        return self._staged

    def _batch_of(self, form: Values) -> str:
        """The file with samples of a resolved dataset; empty for a registered one."""
        return str(self._samples[form[IMPORTED]["data"]]) if IMPORTED in form else ""

    def _copied(self, field: str, name: ImportName, answer: TrialAnswer) -> dict[str, str]:
        """Copy the component's files to a folder of its own. Returns their digests by their paths."""
        by_other_user = self._sandbox is not None and self._sandbox.has_other_user
        try:
            return self._stage().add(name.directory, answer.files, answer.module, by_other_user)
        except OSError as error:
            reason = str(error) if isinstance(error, RefusedFile) else f"{error.filename}: {error.strerror}"
            raise ComponentError(field, reason, name.label) from error

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
                        f"its directory {directory} and {other} have different modules {module}, of which "
                        "a run can import one; rename one",
                        each.name.label,
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
        self._stage().unite({each.code: each.files for each in components}, name)
        return name

    def copy_to(self, directory: Path, runs: Iterable[RunSpec]) -> None:
        """Copy the files of the runs' components to a directory, where nodes read them."""
        if self._staged is None:
            return
        components = (getattr(run, field) for run in runs for field in FIELDS)
        folders = {each.imported.folder for each in components if isinstance(each, ImportedComponent)}
        self._staged.copy_to(directory, folders)
        if self.requirements is not None:
            shutil.copyfile(self.requirements, directory / "requirements.txt")

    def close(self) -> None:
        """End the process. The copied files stay as long as this object."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


@dataclass(frozen=True)
class _Found:
    """A component that was tried. files: digests of those that it needs, by their paths."""

    name: ImportName
    answer: TrialAnswer
    files: Mapping[str, str]

    @cached_property
    def code(self) -> str:
        """What identifies its code, and the name of the folder with its files alone."""
        return digest(self.files, self.answer.module)

    @property
    def form(self) -> Values:
        """Its form as a field of a run."""
        return self.in_folder(self.code)

    def in_folder(self, folder: str) -> Values:
        """Like `form`, with the files in another folder, beside those of other components."""
        source = {"module": self.name.module, "attribute": self.name.attribute}
        facts = {**self.answer.facts, **source, "code": self.code, "folder": folder}
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

    field: the field of the run. component: the name of the component; empty for several. invalid: what is
    wrong with its parameters. allowed: the allowed names.
    """

    def __init__(
        self,
        field: str,
        reason: str,
        component: str,
        invalid: Sequence[Values] = (),
        allowed: Sequence[str] = (),
    ) -> None:
        super().__init__(f"{component}: {reason}" if component else reason)
        self.field, self.reason, self.component = field, reason, component
        self.invalid, self.allowed = invalid, allowed

    def lines(self, place: Callable[[tuple[int | str, ...]], str]) -> Iterator[str]:
        """One line for each error. place: formats a location in the run."""
        if not self.invalid:
            where, name = place((self.field,)), self.component.rpartition("/")[2].strip("'")
            yield f"{where}: {self.reason if name in where else self}"  # an option has the name already
            return
        details = [{**each, "loc": (self.field, *each["loc"])} for each in self.invalid]
        yield from detail_lines(details, place, lambda _: self.allowed or ["no parameters"])


@dataclass(frozen=True)
class _Run:
    """What components depend on beside each other. Invalid values are left to the check of the run."""

    ranks: int
    batch_size: int
    memory_mb: int

    @classmethod
    def of(cls, values: Values) -> _Run:
        def number(field: str, most: int = 65536) -> int:
            default: int = RunSpec.model_fields[field].default
            value = values.get(field, default)
            return value if type(value) is int and 0 < value <= most else default

        ranks = number("nodes") * number("processes_per_node")
        return cls(ranks, number("batch_size"), number("memory_mb", most=2**24))


def _is_valid(field: str, form: Values) -> bool:
    """Whether a registered component has this form."""
    try:
        REGISTRIES[field].parse(form)
    except (ValidationError, PydanticCustomError):
        return False
    return True


def _form(value: Any) -> Values:
    return {"name": value} if isinstance(value, str) else dict(value) if isinstance(value, dict) else {}
