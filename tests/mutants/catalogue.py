"""The catalogue of deliberate mistakes, and what must hold for it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

PROJECT = Path(__file__).resolve().parents[2]
CATALOGUE = Path(__file__).with_name("catalogue.yml")


class CatalogueError(Exception):
    """The catalogue cannot be used. The message has a line for each problem."""


class Mutant(BaseModel):
    """A deliberate mistake, and the tests that should notice it.

    Attributes:
        name: unique, in kebab-case.
        mistake: what is wrong, as a sentence.
        file: its path in the repository.
        find: a text that the file has exactly once.
        replace: what stands there instead.
        tests: arguments of pytest: files or tests in them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=r"\A[a-z0-9]+(-[a-z0-9]+)*\z")]
    mistake: Annotated[str, Field(pattern=r"\A[A-Z].*\.\z")]
    file: str
    find: Annotated[str, Field(min_length=1)]
    replace: str
    tests: Annotated[list[str], Field(min_length=1)]

    def applied_to(self, text: str) -> str:
        """The text of the file with the mistake."""
        return text.replace(self.find, self.replace)


def read_catalogue(path: Path = CATALOGUE) -> list[Mutant]:
    """The mutants, in the order of the file. Raises CatalogueError."""
    try:
        entries: list[dict[str, Any]] = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise CatalogueError(f"{path.name}: {error}") from None
    mutants, found = [], []
    for number, entry in enumerate(entries):
        try:
            mutants.append(Mutant.model_validate(entry))
        except ValidationError as error:
            name = entry.get("name") if isinstance(entry, dict) else None
            for each in error.errors():
                field = ".".join(map(str, each["loc"]))
                found.append(f"{name or f'entry {number}'}: {field}: {each['msg']}")
    found += [f"{mutant.name}: {problem}" for mutant in mutants for problem in problems(mutant)]
    names = Counter(mutant.name for mutant in mutants)
    found += [f"{name}: the name of {count} entries" for name, count in names.items() if count > 1]
    if found:
        raise CatalogueError("\n".join(f"{path.name}: {problem}" for problem in found))
    return mutants


def problems(mutant: Mutant) -> Iterator[str]:
    """Why a mutant cannot be tried."""
    source = PROJECT / mutant.file
    if not source.is_file():
        yield f"file: {mutant.file} does not exist"
    else:
        text = source.read_text(encoding="utf-8")
        if (count := text.count(mutant.find)) != 1:
            yield f"find: {mutant.file} has the text {count} times, not once"
        elif source.suffix == ".py" and (error := _syntax_error(mutant.applied_to(text))):
            yield f"replace: {mutant.file} would be no Python: {error}"
    if mutant.find == mutant.replace:
        yield "replace: changes nothing"
    for test in mutant.tests:
        name, _, function = test.partition("::")
        path = PROJECT / name
        if not path.is_file():
            yield f"tests: {name} does not exist"
        elif function and not _defines(path, function.partition("[")[0]):
            yield f"tests: {name} does not define {function.partition('[')[0]}"


def _syntax_error(text: str) -> str:
    """What is wrong with a Python source; empty if nothing is."""
    try:
        compile(text, "mutant", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"{error.msg}, line {error.lineno}"
    return ""


def _defines(path: Path, function: str) -> bool:
    return bool(re.search(rf"(?m)^(async )?def {re.escape(function)}\(", path.read_text(encoding="utf-8")))
