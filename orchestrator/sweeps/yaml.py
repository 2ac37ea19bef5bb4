"""Safe YAML without duplicate keys, in which 1e-3 is a number, with a limit on what aliases expand to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import InputError
from trainer.core.regular_files import RefusedFile, read_regular, why_unread

MAX_BYTES = 2**20  # of a file; the largest shipped one has 6 kB
MAX_VALUES = (
    10_000  # keys, values, lists and mappings of a file, with every alias replaced by what it names
)
NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
MAX_NUMBER = 100  # characters of a number, in any base
SURROGATE = re.compile("[\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses duplicate keys and reads 1e-3, a string in YAML 1.1."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Join the escapes of a surrogate pair to one character, as JSON does; refuse half of a pair."""
        value = super().construct_scalar(node)
        if not isinstance(value, str) or not SURROGATE.search(value):
            return value
        try:
            return value.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise yaml.MarkedYAMLError(
                problem="half of a surrogate pair, which is no character", problem_mark=node.start_mark
            ) from None

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Refuse very long numbers, which Python cannot write, and values that do not fit their tag."""
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        if node.tag in NUMBERS and len(node.value) > MAX_NUMBER:
            problem = f"a number of {len(node.value):,} characters; allowed: at most {MAX_NUMBER}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError) as error:
            problem = f"{node.value!r:.60} is no {node.tag.rpartition(':')[2]}"
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[str, int] = {}
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
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
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_size(node, source)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}" if mark else ""
        raise InputError(f"{source}{where}: {error.problem or 'invalid YAML'}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{source}: invalid YAML ({error})") from error
    except RecursionError as error:
        raise InputError(f"{source}: nested too deeply") from error


def _check_size(root: yaml.Node, source: str) -> None:
    """Raise InputError if aliases expand to too many values, or name what contains them."""
    sizes: dict[int, int] = {}  # of the nodes' values, by identity: an alias is the node that it names
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        key, line = id(node), node.start_mark.line + 1
        if key in open_nodes:
            raise InputError(f"{source}:{line}: an alias names a list or mapping that contains the alias")
        if key not in sizes:
            open_nodes.add(key)
            parts = [node.value] if isinstance(node, yaml.SequenceNode) else []
            parts = [*zip(*node.value, strict=True)] if isinstance(node, yaml.MappingNode) else parts
            sizes[key] = 1 + sum(size(inner) for part in parts for inner in part)
            open_nodes.discard(key)
        if sizes[key] > MAX_VALUES:
            raise InputError(
                f"{source}:{line}: {sizes[key]:,} values, counting those of aliases; allowed: at most "
                f"{MAX_VALUES:,}"
            )
        return sizes[key]

    size(root)


def read_yaml(path: Path) -> tuple[Any, str]:
    """The value in a file, and its text."""
    try:
        text = read_regular(path, MAX_BYTES).decode()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except RefusedFile as error:
        raise InputError(str(error)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read ({why_unread(error)})") from error
    return parse_yaml(text, str(path)), text
