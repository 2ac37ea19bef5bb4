"""The reference of what a strategy calls: signatures and docstrings of the sources.

The sources are parsed and not imported, so that signatures stand as they are written.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from orchestrator.shipped import IMPORT_ROOT

Method = ast.FunctionDef
# Limits on what a user's class declares.
_LIMITED = re.compile(r"Annotated\[(.+?), Field\([^()]*\)\]")
_BRACKETS = re.compile(r"(\() |,? (\))")  # of a signature that was on several lines
_ITEM = re.compile(r"(?m)^([\w, ]+): ")


@dataclass(frozen=True)
class Described:
    """A class, and methods that a strategy calls, by group, in the order in which an author needs them.

    Attributes:
        file: below trainer/.
        variable: what an instance is called.
        named: methods that few strategies need, which are only named.
    """

    file: str
    variable: str
    groups: Mapping[str, str]
    named: str = ""


CLASSES = {
    "Strategy": Described(
        "core/strategy.py",
        "self",
        {"Methods": "train replicas validation_error"},
        "replica_of reports_samples sees_inputs recompute_error not_checkpointed updates_use_global_batch "
        "bubble step_bytes",
    ),
    "Session": Described(
        "training/session.py",
        "session",
        {
            "Begin": "replica start",
            "Epochs and batches": "epochs synchronous_batches batches synchronous_steps steps steps_taken",
            "Averages of weights": "averaging_weight aggregate averaged evaluate_final_weights",
            "State that checkpoints contain": "common_state own_state restarting",
        },
        "takes_plain_mean sent_gradient aggregate_gradients samples_in_step is_server server_steps "
        "report_staleness",
    ),
    "Batch": Described("training/loader.py", "batch", {"Samples": "samples share"}),
    "Replica": Described(
        "training/replica.py",
        "replica",
        {"Gradient, step and weights": "backward gradient set_gradient step weights set_weights lr"},
        "scaled_step flat_parameters set_flat_parameters flat_buffers set_flat_buffers set_lr "
        "optimizer_state set_optimizer_state reset_optimizer",
    ),
    "Communicator": Described(
        "comm/base.py",
        "comm",
        {
            "Collectives": "all_reduce weighted_mean all_gather all_to_all reduce_scatter gather broadcast "
            "shift barrier",
            "Beside the computation": "iall_reduce iweighted_mean iall_gather ireduce_scatter ibroadcast "
            "ishift",
            "From rank to rank": "send recv isend irecv",
            "Groups": "split",
        },
        "all_gather_float64",
    ),
}


# Few strategies need these, so they are only named.
_FEW = """elastic_transports layouts autocasts needs_thread cuts_model full_gradients shards_state
alike_between_rounds optimizers overlaps_backward evaluates_together exchanges_in_steps uses_replica forks
shares_model attributes_stragglers untraced caveat trains"""
# What a strategy declares, by how many strategies need it, with the law of `check` that tries it.
DECLARED: dict[str, dict[str, str]] = {
    "Most strategies need": {
        "transports": "",
        "min_nodes": "ends",
        "checkpoint_intervals": "",
        "equals": "equals",
    },
    "Some need": {
        "synchronous": "",
        "partitions_model": "samples",
        "uses_partition": "samples",
        "servers": "samples",
        "deterministic": "repeats",
        "averages": "averages",
        "averages_gradients": "",
        "virtual": "",
        "equivalent": "",
        "every_gradient": "",
    },
    "": {"max_nodes": "ends", **dict.fromkeys(_FEW.split(), "")},
}


def reference(name: str) -> Callable[[Path], str]:
    """The page's part on one of CLASSES. Raises KeyError for a method that does not exist."""
    described = CLASSES[name]

    def block(_: Path) -> str:
        source = (IMPORT_ROOT / "trainer" / described.file).read_text(encoding="utf-8")
        node = next(
            each for each in ast.parse(source).body if isinstance(each, ast.ClassDef) and each.name == name
        )
        methods = {each.name: each for each in node.body if isinstance(each, Method) and _is_public(each)}
        return "\n".join(_lines(described, node, methods, source.splitlines()))

    return block


def _is_public(method: Method) -> bool:
    """Whether it is to be described; the setter of a property is not."""
    return not method.name.startswith("_") and not any(
        isinstance(each, ast.Attribute) for each in method.decorator_list
    )


def _lines(
    described: Described, node: ast.ClassDef, methods: dict[str, Method], source: list[str]
) -> Iterator[str]:
    yield f"\n{_markdown(node)}"
    named = [methods[each].name for each in described.named.split()]
    if described.variable == "self":
        yield from _declarations(node, source)
        named = [*DECLARED[""], *named]
    for group, names in described.groups.items():
        yield f"### {group}\n"
        for method in map(methods.__getitem__, names.split()):
            signature = " ".join(_signature(method, described.variable, source).split())
            call = _BRACKETS.sub(r"\1\2", signature)
            yield f"- `{call}`: {_item(method)}"
        yield ""
    if named:
        listed = ", ".join(f"`{each}`" for each in named)
        file = f"[{described.file}](../trainer/{described.file})"
        yield f"Rarely needed, and described in {file}: {listed}.\n"


def _declarations(node: ast.ClassDef, source: list[str]) -> Iterator[str]:
    """Lists of the class variables, with the comments above them and the laws that try them."""
    rows = {}
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.annotation, ast.Subscript):  # ClassVar[...]
            above = each.lineno - 1
            while source[above - 1].lstrip().startswith("#"):
                above -= 1
            comment = " ".join(line.strip(" #") for line in source[above : each.lineno - 1])
            name, default = ast.unparse(each.target), f" = {ast.unparse(each.value)}" if each.value else ""
            rows[name] = f"- `{name}{default}`: {comment}"
    for group, laws in DECLARED.items():
        if group:
            yield f"### {group}\n"
            for name, law in laws.items():
                yield rows[name] + (f" [`{law}`](check.md#strategies)" if law else "")
            yield ""


def _signature(method: Method, variable: str, source: list[str]) -> str:
    """The signature in the source, without `self`, called on `variable`."""
    written = "\n".join(source[method.lineno - 1 : method.body[0].lineno - 1])
    call = dedent(written).replace("def ", f"{variable}.", 1).removesuffix(":")
    call = re.sub(r"\((\s*)(?:self|cls)(?:,\s*|(?=\)))", r"(\1", call, count=1)
    is_property = any(ast.unparse(each) == "property" for each in method.decorator_list)
    call = _without_limits(call)
    return call.replace("() ->", ":") if is_property else call


def _without_limits(declared: str) -> str:
    return _LIMITED.sub(r"\1", declared)


def _item(method: Method) -> str:
    """The first paragraph of the docstring, and what its arguments are, for an item of a list."""
    first, *paragraphs = (ast.get_docstring(method) or "").split("\n\n")
    described = [text for text in paragraphs if text.startswith("Args:")]
    return " ".join([" ".join(first.split()), *map(_arguments, described)])


def _arguments(paragraph: str) -> str:
    items = re.split(r"\n(?! )", dedent(paragraph.partition("\n")[2]))
    return " ".join(
        _ITEM.sub(lambda found: f"`{found[1]}`: ", " ".join(item.split()), count=1) for item in items
    )


def _markdown(node: ast.ClassDef | Method) -> str:
    """The docstring: arguments and attributes become lists."""
    text = ""
    for paragraph in (ast.get_docstring(node) or "").split("\n\n"):
        first, _, rest = paragraph.partition("\n")
        if first not in ("Args:", "Attributes:"):
            text += f"{' '.join(paragraph.split())}\n\n"
            continue
        items = re.split(r"\n(?! )", dedent(rest))
        joined = (" ".join(item.split()) for item in items)
        listed = (_ITEM.sub(lambda found: f"`{found[1]}`: ", item, count=1) for item in joined)
        text += f"{first}\n\n" + "".join(f"- {item}\n" for item in listed) + "\n"
    return text.rstrip("\n") + "\n"
