"""A machine whose commands are stubs, for tests of shell scripts."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

# Of the real machine, for all scripts.
COMMANDS = (
    *(
        "awk",
        "bash",
        "cat",
        "chmod",
        "cp",
        "cut",
        "dirname",
        "env",
        "find",
        "flock",
        "grep",
        "head",
        "ls",
        "mkdir",
    ),
    *("rm", "sed", "setsid", "sleep", "sort", "tail", "timeout", "touch", "xargs"),
)


class StubMachine:
    """Its directories, and what a script has called. A stub finds `state` in $STATE and `bin` in $BIN."""

    def __init__(self, folder: Path, commands: Iterable[str] = ()) -> None:
        """commands: more of the real machine that a script may use beside the stubs."""
        self.state, self.home, self.bin = folder / "state", folder / "c", folder / "bin"
        for made in (self.state, self.bin):
            made.mkdir()
        for name in (*COMMANDS, *commands):
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.environment = {"PATH": str(self.bin), "STATE": str(self.state), "BIN": str(self.bin)}

    def write(self, name: str, text: str, folder: Path | None = None) -> None:
        """A stub, which records its calls. folder: default: that of the commands."""
        stub = (folder or self.bin) / name
        stub.unlink(missing_ok=True)
        stub.write_text(f'#!/bin/bash\necho "{name} $*" >>"$STATE/calls"\n{text}\n')
        stub.chmod(0o755)

    def execute(self, script: Path, *arguments: str) -> tuple[int, str]:
        """The exit code and the output of a script."""
        done = subprocess.run(
            [script, *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,  # at its end only if no daemon holds it
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout

    def called(self, *names: str) -> list[str]:
        """The calls of these stubs, in their order."""
        try:
            calls = (self.state / "calls").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [call for call in calls if call.startswith(names)]
