"""The blocks of code of a page of docs."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.shipped import IMPORT_ROOT

FENCE = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")


def blocks(page: str, language: str) -> list[str]:
    """Those of a language, in order; "" for those that name none. page: such as docs/slurm.md."""
    return [text for found, text in FENCE.findall((IMPORT_ROOT / page).read_text()) if found == language]


def write_files(page: Path, directory: Path) -> None:
    """Write the files of a page: blocks whose first line is a comment with a name, and sweeps."""
    for language, text in FENCE.findall(page.read_text()):
        named = re.match(r"# (\w+\.(?:py|yml))\n", text)
        sweep = re.search(r"(?m)^name: (\w+)", text) if language == "yaml" else None
        if file := named[1] if named else f"{sweep[1]}.yml" if sweep else "":
            with (directory / file).open("a") as opened:
                opened.write(text + "\n\n")
