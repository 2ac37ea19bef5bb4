"""Users' components of a sweep: `./mine.py:Net`, `package.module:Net`, `torchvision:resnet18`.

Loading a sweep runs no users' code in this process: `Trials` has each component tried once, with the
software of the nodes, and says what a spec must know of it. The files that a component needs are copied to
a folder named after their content; the results directory keeps it, and nodes read it.
"""

from __future__ import annotations

import shutil
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from orchestrator.errors import InputError
from orchestrator.sweeps.component_names import ImportName, form_of
from orchestrator.sweeps.staged_code import digest
from orchestrator.sweeps.trials import MakeSandbox, TrialError, Trials, local_sandbox
from orchestrator.sweeps.validation import detail_lines
from trainer.components.find import kinds
from trainer.components.messages import FIT, Answer, Place, Request
from trainer.core.record import first_error
from trainer.core.registry import IMPORTED, ImportedComponent
from trainer.core.regular_files import RefusedFile
from trainer.spec.registries import REGISTRIES
from trainer.spec.run_spec import RunSpec

Values = dict[str, Any]

FIELDS = tuple(REGISTRIES)  # in this order: a model needs the dataset, and a strategy both
ANSWER_S = 600.0  # in which a component must have been tried
Figures = Literal["profile", "ranks", "partition"]


def is_imported(run: RunSpec, field: str) -> bool:
    """Whether a field of a run is a user's component."""
    return isinstance(getattr(run, field), ImportedComponent)


def has_users(run: RunSpec) -> bool:
    """Whether a run has users' components, whose code this process does not run."""
    return any(is_imported(run, field) for field in FIELDS)


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
class _Tried:
    """A component that was tried. files: digests of those that it needs, by their paths."""

    name: ImportName
    answer: Answer
    files: Mapping[str, str]

    @cached_property
    def code(self) -> str:
        """What identifies its code, and the name of the folder with its files alone."""
        return digest(self.files, self.answer.module)

    def form(self, folder: str) -> Values:
        """Its form as a field of a run, with its files in a folder."""
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


class Imports:
    """The components of a sweep that are users'. Each is tried once.

    Attributes:
        directory: the directory of the sweep file; import paths count from it. trials: tries them.
    """

    def __init__(
        self, directory: Path, data_dir: Path = Path("data"), make_sandbox: MakeSandbox = local_sandbox
    ) -> None:
        self.directory, self._data_dir = directory.resolve(), data_dir.resolve()
        self.trials = Trials(self.directory, self._data_dir, make_sandbox)
        self._answers: dict[str, Answer] = {}
        self._tried: dict[str, _Tried] = {}
        self._samples: dict[str, Path] = {}  # of users' datasets, by the digest of their data

    @property
    def requirements(self) -> Path | None:
        """The file with the requirements of the sweep."""
        return self.trials.requirements

    @requirements.setter
    def requirements(self, path: Path | None) -> None:
        self.trials.requirements = path

    @property
    def code(self) -> Path | None:
        """The directory with the files of the components; None if no run has any."""
        return self.trials.code

    def figures(self, kind: Figures, run: RunSpec, split_points: Sequence[str] = ()) -> Answer:
        """Figures of a run with users' components, from the process that tries them. Raises InputError."""
        request = Request(
            do=kind,
            run=run.model_dump(mode="json"),
            split_points=[*split_points],
            data_dir=str(self._data_dir),
            limit_s=ANSWER_S,
        )
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
        forms = {field: form_of(values.get(field, RunSpec.model_fields[field].default)) for field in FIELDS}
        if not all(_is_valid(field, forms[field]) for field in FIELDS if field not in named):
            # The check of the run reports those; it cannot know users' components.
            placeholder = {"strategy": "serial"} if "strategy" in named else {}
            return {field: value for field, value in values.items() if field not in named} | placeholder
        tried: dict[str, _Tried] = {}
        self.trials.use_memory(_number(values, "memory_mb", most=2**24))
        for field, name in named.items():
            tried[field] = found = self._component(field, name, forms, values)
            forms[field] = found.form(found.code)
        folders = self._folders(tried)
        for field, found in tried.items():
            forms[field] = found.form(folders[found.name.directory])
        trains = "strategy" in named or REGISTRIES["strategy"].parse(forms["strategy"]).trains
        if trains and (fitted := [field for field in FIT if field in named]):
            together, batch = {field: forms[field] for field in FIT}, self._batch(forms)
            request = Request(do="fit", forms=together, batch=batch, limit_s=ANSWER_S)
            self._asked(fitted[0], "", request)
        return {**values, **{field: forms[field] for field in named}}

    def _name(self, field: str, value: Any) -> ImportName | None:
        form = form_of(value)
        name = form.get("name")
        if not isinstance(name, str) or IMPORTED in form:
            return None
        try:
            return ImportName.of(field, name, self.directory)
        except ValueError as error:
            raise ComponentError(field, str(error), repr(name)) from error

    def _component(
        self, field: str, name: ImportName, forms: Mapping[str, Values], values: Values
    ) -> _Tried:
        """What a run must know of a component, which is tried once. Raises ComponentError."""
        ranks = _number(values, "nodes") * _number(values, "processes_per_node")
        kind = kinds()[field]
        request = Request(
            do="load",
            kind=field,
            place=Place(
                directory=str(name.directory),
                module=name.module,
                attribute=name.attribute,
                parameters={key: value for key, value in forms[field].items() if key != "name"},
            ),
            forms={each: forms[each] for each in kind.needs},
            data_dir=str(self._data_dir),
            batch=self._batch(forms) if kind.needs else "",
            ranks=min(ranks, kind.most_ranks),
            batch_size=_number(values, "batch_size") if kind.most_ranks > 1 else 1,
            limit_s=ANSWER_S,
        )
        key = request.model_dump_json()
        if key not in self._tried:
            answer = self._asked(field, name.label, request)
            self._tried[key] = self._usable(field, _Tried(name, answer, self._copied(field, name, answer)))
        return self._tried[key]

    def _usable(self, field: str, tried: _Tried) -> _Tried:
        """The component, whose samples are stored if it is a dataset. Raises ComponentError."""
        form = tried.form(tried.code)
        try:
            REGISTRIES[field].parse(form)
            samples = b64decode(tried.answer.samples, validate=True)
        except (ValidationError, PydanticCustomError, ValueError) as error:
            reason = first_error(error) if isinstance(error, ValidationError) else str(error)
            raise ComponentError(field, reason, tried.name.label) from error
        if field == "dataset" and (data := form[IMPORTED]["data"]) not in self._samples:
            self._samples[data] = self.trials.staged.write(f"{len(self._samples)}.npz", samples)
        return tried

    def _asked(self, field: str, label: str, request: Request) -> Answer:
        """The answer to a request, which is asked once. Raises ComponentError."""
        key = request.model_dump_json()
        try:
            answer = self._answers[key] = self._answers.get(key) or self.trials.ask(request)
        except TrialError as error:
            raise ComponentError(field, str(error), label) from error
        if answer.invalid:
            raise ComponentError(field, "", label, [*map(dict, answer.invalid)], answer.allowed)
        if reason := answer.error or (answer.ended and f"the process that tried it {answer.ended}"):
            raise ComponentError(field, reason, label)
        return answer

    def _batch(self, forms: Mapping[str, Values]) -> str:
        """The file with samples of a resolved dataset; empty for a registered one."""
        form = forms["dataset"]
        return str(self._samples[form[IMPORTED]["data"]]) if IMPORTED in form else ""

    def _copied(self, field: str, name: ImportName, answer: Answer) -> dict[str, str]:
        """Copy the component's files to a folder of its own. Returns their digests by their paths."""
        staged = self.trials.staged
        try:
            return staged.add(name.directory, answer.files, answer.module, self.trials.has_other_user)
        except OSError as error:
            reason = str(error) if isinstance(error, RefusedFile) else f"{error.filename}: {error.strerror}"
            raise ComponentError(field, reason, name.label) from error

    def _folders(self, tried: Mapping[str, _Tried]) -> dict[Path, str]:
        """The folder of each directory that the components of a run are in, which they share.

        Raises:
            ComponentError: Modules of several directories have the same name, and one would hide the other.
        """
        modules: dict[str, tuple[Path, dict[str, str]]] = {}
        for field, each in tried.items():
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
        for directory in {each.name.directory for each in tried.values()}:
            sharing = [each for each in tried.values() if each.name.directory == directory]
            folders[directory] = sharing[0].code
            if len({each.code for each in sharing}) > 1:
                files = {file: each.files[file] for each in sharing for file in each.files}
                folders[directory] = digest(files)
                self.trials.staged.unite({each.code: each.files for each in sharing}, folders[directory])
        return folders

    def copy_to(self, directory: Path, runs: Iterable[RunSpec]) -> None:
        """Copy the files of the runs' components to a directory, where nodes read them."""
        if self.code is None:
            return
        components = (getattr(run, field) for run in runs for field in FIELDS)
        folders = {each.imported.folder for each in components if isinstance(each, ImportedComponent)}
        self.trials.staged.copy_to(directory, folders)
        if self.requirements is not None:
            shutil.copyfile(self.requirements, directory / "requirements.txt")

    def close(self) -> None:
        """End the process. The copied files stay as long as this object."""
        self.trials.close()


def _number(values: Values, field: str, most: int = 65536) -> int:
    """A field on which components depend. An invalid value is left to the check of the run."""
    default: int = RunSpec.model_fields[field].default
    value = values.get(field, default)
    return value if type(value) is int and 0 < value <= most else default


def _is_valid(field: str, form: Values) -> bool:
    """Whether a registered component has this form."""
    try:
        REGISTRIES[field].parse(form)
    except (ValidationError, PydanticCustomError):
        return False
    return True
