"""Renderer: draws a report's figures in a process of its own, while the caller goes on.

vl-convert holds Python's lock while it draws, so a thread would not do. The process reads one list of
specifications from its standard input and ends, also where the caller was killed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

from orchestrator.shipped import IMPORT_ROOT


@dataclass(frozen=True)
class Drawings:
    """What a page shows of its figures.

    svgs: an `<svg>` element per figure, in the order of the specifications. library: Vega's scripts, packed
    as in `vega.packed`.
    """

    svgs: Sequence[str]
    library: str


class Renderer:
    """The process. It starts loading at once, so enter it before anything else is read."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator.report.figures"],
            cwd=IMPORT_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,  # the caller handles Ctrl-C
        )
        self._waiting = ThreadPoolExecutor(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # it has ended unless the caller failed
        self._waiting.shutdown()
        self._process.communicate()

    def draw(self, specs: Sequence[dict[str, Any]]) -> Future[Drawings]:
        """Start to draw the figures of Vega-Lite specifications. Call it once.

        Its result raises RuntimeError if the process fails.
        """
        return self._waiting.submit(self._drawn, json.dumps(specs))

    def _drawn(self, specs: str) -> Drawings:
        drawings, errors = self._process.communicate(specs)
        if self._process.returncode:
            raise RuntimeError(
                f"the process that draws figures ended with exit code {self._process.returncode}: {errors}"
            )
        return Drawings(**json.loads(drawings))
