"""How the orchestrator hands runs to warm containers, through a directory that both can write to.

    DIRECTORY/NAME/spec.json       written by the orchestrator: the run. The run record joins it.
    DIRECTORY/next                 then written by the orchestrator: NAME. The coordinator removes it.
    DIRECTORY/NAME/cancel          written by the orchestrator to end the run early.
    DIRECTORY/NAME/alive           touched by the coordinator until the run has ended: its heartbeat.
    DIRECTORY/NAME/suspended.json  written by the coordinator: PIDs of suspended ranks and mpirun.
    DIRECTORY/NAME/ended.json      written by the coordinator when the run has ended: an Ending.

The coordinator writes the same files in the directory of a cold run.

A mounted directory is the one channel that every engine has, those in virtual machines included.
"""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import Field

from trainer.core.record import Record

IDLE_S = 300.0  # without a run, after which the containers exit; less than a warm parent's limit
POLL_S = 0.02
NEXT, SPEC, CANCEL, ENDED = "next", "spec.json", "cancel", "ended.json"
ALIVE, SUSPENDED = "alive", "suspended.json"


class Ending(Record):
    """How a run in warm containers has ended.

    exits: exit code by agent (node-1, launcher) and of the coordinator, as its container would have it,
        and that of mpirun if it has failed.
    failures: the first known cause, by agent.
    unreported: those of them that no event of a rank reports.
    lost: how a warm parent has failed; None if none has.
    cut_off: which container was cut off the network or did not register; None if none.
    untrusted: which container has sent invalid data, and what; None if none has.
    """

    exits: dict[str, int]
    failures: dict[str, str] = Field(default_factory=dict)
    unreported: dict[str, str] = Field(default_factory=dict)
    lost: str | None = None
    cut_off: str | None = None
    untrusted: str | None = None


def hand_over(directory: Path, name: str) -> None:
    """Let the coordinator start the run in `directory / name`, whose spec is there."""
    draft = directory / f".{NEXT}"
    draft.write_text(name)
    draft.replace(directory / NEXT)


def take_over(directory: Path) -> Path | None:
    """Wait for a run. Returns its directory, or None if there is none for IDLE_S."""
    deadline = time.monotonic() + IDLE_S
    while time.monotonic() < deadline:
        if (directory / NEXT).exists():
            run = directory / (directory / NEXT).read_text()
            (directory / NEXT).unlink()
            return run
        time.sleep(POLL_S)
    return None


def log_marks(key: str) -> tuple[str, str]:
    """The lines that enclose a run in the log of a warm container."""
    return f"--- run {key} ---", f"--- end of run {key} ---"
