"""Where the code of a user's component is, and how it is loaded. Imports no torch.

A run never reads the user's own files. The orchestrator copies those that a component needs to a directory
named after their content; nodes find it below SHARDYARD_CODE.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, ConfigDict

CODE = "SHARDYARD_CODE"
TORCHVISION = "torchvision"


class ImportFailure(Exception):
    """A user's component cannot be used. The message names file and line where there are any."""


class Source(BaseModel):
    """What a spec says about the code of a component.

    code: digest of the files that it needs; it names their directory below SHARDYARD_CODE. module: a file
    in that directory, `mine.py`, or a module's name, `package.module`. attribute: of the module.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    code: str
    module: str
    attribute: str

    @property
    def key_fields(self) -> dict[str, str]:
        """What is part of the run key: runs with other code are other runs."""
        return {"code": self.code}

    @property
    def directory(self) -> Path:
        """The directory of the files. Raises ImportFailure."""
        if CODE not in os.environ:
            raise ImportFailure(f"{CODE} is not set, so the code of {self.module} is not to be had")
        return Path(os.environ[CODE]) / self.code

    def load(self) -> Any:
        """The class or function. Raises ImportFailure."""
        return load(self.directory, self.module, self.attribute)


def load(directory: Path, module: str, attribute: str) -> Any:
    """Import `attribute` of a file in `directory`, or of a module that is there or installed.

    Raises:
        ImportFailure: The module does not import, or lacks the attribute.
    """
    try:
        found = _imported(directory, module)
    except Exception as error:
        raise ImportFailure(located(error, directory)) from error
    if module == TORCHVISION:
        return _torchvision_model(found, attribute)
    if not hasattr(found, attribute):
        public = [name for name, value in vars(found).items() if _is_own(value, found)]
        defined = f"; it defines {', '.join(public)}" if public else ""
        raise ImportFailure(f"{module} has no {attribute}{defined}")
    return getattr(found, attribute)


def _imported(directory: Path, module: str) -> ModuleType:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))  # for the modules beside it
    if module == TORCHVISION:
        from trainer.data.augmentations.torchvision_import import torchvision

        return import_module(f"{torchvision.__name__}.models")
    if not module.endswith(".py"):
        return import_module(module)
    name = f"shardyard_user_{directory.name}_{Path(module).stem}"  # hides no module of this name
    if name not in sys.modules:
        spec = spec_from_file_location(name, directory / module)
        if spec is None or spec.loader is None or not (directory / module).is_file():
            raise FileNotFoundError(f"there is no file {directory / module}")
        sys.modules[name] = made = module_from_spec(spec)
        try:
            spec.loader.exec_module(made)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _torchvision_model(models: ModuleType, name: str) -> Any:
    try:
        return models.get_model_builder(name)
    except ValueError as error:
        from trainer.core.registry import suggestion

        known = suggestion(name, models.list_models())
        raise ImportFailure(
            f"torchvision has no model {name}{known}; torchvision.models.list_models() lists them"
        ) from error


def _is_own(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", "") == module.__name__


def located(error: BaseException, directory: Path) -> str:
    """The error as one line, with file and line of the innermost frame in `directory`, if there is one."""
    text = f"{type(error).__name__}: {error}"
    place = place_of(error, directory)
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{_relative(Path(error.filename), directory)}:{error.lineno}"
        text = f"SyntaxError: {error.msg}"
    return f"{place}: {text}" if place else text


def place_of(error: BaseException, directory: Path) -> str | None:
    """`mine.py:12`: the innermost frame of an error that is in `directory`; or None."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if Path(frame.filename).is_relative_to(directory)]
    return f"{_relative(Path(inside[-1].filename), directory)}:{inside[-1].lineno}" if inside else None


def place_in_code(error: BaseException, environment: Mapping[str, str]) -> str | None:
    """`mine.py:12`: where in a user's code an error of a node was raised; None: it was raised elsewhere."""
    directory = environment.get(CODE)
    place = place_of(error, Path(directory)) if directory else None
    return place.partition("/")[2] if place else None  # without the digest


def _relative(path: Path, directory: Path) -> Path:
    return path.relative_to(directory) if path.is_relative_to(directory) else path
