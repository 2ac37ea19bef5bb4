"""Safe YAML without duplicate keys, in which 1e-3 is a number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import InputError


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and reads 1e-3, a string in YAML 1.1."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue  # `<<: *base`, whose keys may be overridden
            key = str(self.construct_object(key_node, deep=True))
            line = key_node.start_mark.line + 1
            if key in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate key {key!r}, also in line {seen[key]}",
                    problem_mark=key_node.start_mark,
                )
            seen[key] = line
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parse_yaml(text: str, source: str) -> Any:
    """Parse `text`. source: the file or option to name in an InputError."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}" if mark else ""
        raise InputError(f"{source}{where}: {error.problem or 'invalid YAML'}") from error
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date or number
        raise InputError(f"{source}: invalid YAML ({error})") from error
    except RecursionError as error:
        raise InputError(f"{source}: nested too deeply") from error


def read_yaml(path: Path) -> tuple[Any, str]:
    """The value in a file, and its text."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a directory, not a sweep file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    return parse_yaml(text, str(path)), text
