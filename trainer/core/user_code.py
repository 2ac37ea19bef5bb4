"""Where the code of a user's component is, and how it is loaded. Imports no torch.

A run never reads the user's own files. The orchestrator copies those that a component needs to a directory
named after their content; nodes find it below SHARDYARD_CODE.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import PydanticUserError

from trainer.core.registry import shortened, suggestion

CODE = "SHARDYARD_CODE"
TORCHVISION = "torchvision"
MAX_NAME = 400  # characters of a name that users' code gives

_loading = threading.RLock()  # ranks that are threads load the same module

_FRAME = re.compile(r'File "(.+?)", line (\d+)(?:,? in (\S+))?')


class ImportFailure(Exception):
    """A user's component cannot be used. The message names file and line where there are any."""


def load(directory: Path, module: str, attribute: str) -> Any:
    """Import `attribute` of a file in `directory`, or of a module that is there or installed.

    Raises:
        ImportFailure: The module does not import, or lacks the attribute.
    """
    found = load_module(directory, module)
    if module == TORCHVISION:
        return _torchvision_model(found, attribute)
    if not hasattr(found, attribute):
        defined = [name for name, value in vars(found).items() if _is_own(value, found)]
        known = f"; it defines {shortened(defined, attribute)}" if defined else ""
        raise ImportFailure(f"{module} has no {attribute}{suggestion(attribute, defined)}{known}")
    called = getattr(found, attribute)
    if not callable(called):
        raise ImportFailure(f"it is of type {type(called).__name__}; it must be a class or a function")
    return called


def load_module(directory: Path, module: str) -> ModuleType:
    """Import a file in `directory`, or a module that is there or installed. Raises ImportFailure."""
    try:
        with _loading:
            return _imported(directory, module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit, too, which would end this process
        raise ImportFailure(located(error, directory)) from error


def _imported(directory: Path, module: str) -> ModuleType:
    if str(directory) not in sys.path:
        sys.path.insert(0, str(directory))  # for the modules beside it
    if module == TORCHVISION:
        from trainer.core.torchvision_import import torchvision

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
        known = suggestion(name, models.list_models())
        raise ImportFailure(
            f"torchvision has no model {name}{known}; torchvision.models.list_models() lists them"
        ) from error


def _is_own(value: object, module: ModuleType) -> bool:
    return callable(value) and getattr(value, "__module__", "") == module.__name__


def located(error: BaseException, directory: Path | None = None) -> str:
    """The error as one line, with file and line of the innermost frame in users' code, if there is one.

    directory: a directory of users' code, in addition to that below SHARDYARD_CODE.
    """
    if isinstance(error, ImportFailure):
        return str(error)
    text, place = f"{type(error).__name__}: {error}", place_of(error, directory)
    if isinstance(error, ImportError) and "relative import" in str(error):
        text += "; a file of a package is named as PACKAGE.MODULE:NAME"
    if isinstance(error, PydanticUserError) and error.code == "model-field-missing-annotation":
        found = error.message.partition(".")[0]  # `n = 0`
        text = f"{found}; write a type, as in `n: int = 0`, or ClassVar if it is no parameter"
    if isinstance(error, SyntaxError) and error.filename:
        path = Path(error.filename)
        place = f"{name_in_code(path, directory) or path}:{error.lineno}"
        text = f"SyntaxError: {error.msg}"
    if (
        isinstance(error, FileNotFoundError)
        and place
        and not Path(str(error.filename or "/")).is_absolute()
    ):
        text += "; relative paths do not count from the code: use Path(__file__).parent"
    return " ".join((f"{place}: {text}" if place else text).split())


def place_of(error: BaseException, directory: Path | None = None) -> str | None:
    """`mine.py:12`: the innermost frame of an error in users' code, as in `located`; or None."""
    return place_in(_frames(error), directory)


def place_in(frames: Iterable[tuple[str, int | str | None]], directory: Path | None = None) -> str | None:
    """Like `place_of`, for frames as file and line, the innermost first."""
    for file, line in frames:
        if name := name_in_code(Path(file), directory):
            return f"{name}:{line}"
    return None


def frames_in(text: str) -> list[tuple[str, str, str]]:
    """File, line and function of the frames in a text, as a traceback and faulthandler have them."""
    return _FRAME.findall(text)


def _frames(error: BaseException | None) -> Iterator[tuple[str, int | str | None]]:
    """File and line of an error's frames, the innermost first; then those of the errors that caused it."""
    while error is not None:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            yield frame.filename, frame.lineno
        for file, line, _ in reversed(frames_in(str(error))):  # as torch RPC has passed it on
            yield file, line
        error = error.__cause__


def name_in_code(path: Path, directory: Path | None = None) -> Path | None:
    """The path of a user's file, from the directory of its component."""
    if directory is not None and path.is_relative_to(directory):
        found = path.relative_to(directory)
        return None if "site-packages" in found.parts else found  # of a virtual environment beside it
    code = os.environ.get(CODE)
    if code and path.is_relative_to(code):
        return Path(*path.relative_to(code).parts[1:])  # without the folder
    return None
