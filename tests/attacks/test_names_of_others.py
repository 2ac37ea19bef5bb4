"""Attacks with names and labels that every user can write: commands that end, wait or remove them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.identity import LABEL, SINCE, identity, is_gone, label_of, labelled
from orchestrator.runtimes.ray import cluster
from orchestrator.sweeps import staged_code
from trainer.core.events import EventReader
from trainer.core.whole_number import whole_number

NO_NUMBERS = ["", "²", "٣", "-1", "+1", " 1", "1\n", "1_0", "0x1", "99999999999999999999", "9" * 5000]


def label(pid: str) -> str:
    return identity().replace(str(os.getpid()), pid, 1)


def test_a_number_is_ascii_digits_up_to_a_limit() -> None:
    for text in NO_NUMBERS:
        assert whole_number(text, 2**31) is None
        assert not is_gone(label(text))


def test_a_process_with_any_name_and_a_label_without_a_pid_is_not_ours() -> None:
    named = "open('/proc/self/comm', 'wb').write(b'\\xff) (\\xfe'); print(flush=True); input()"
    variables = {LABEL: "²", SINCE: identity().partition(" ")[2], "PATH": os.environ["PATH"]}
    with subprocess.Popen(["python3", "-c", named], stdin=-1, stdout=-1, env=variables) as process:
        assert process.stdout
        process.stdout.readline()
        assert not is_gone(identity(process.pid))
        found = {each.pid: label_of(environment) for each, environment in labelled()}
        process.kill()
    assert process.pid not in found


# Instead of the label of the orchestrator whose session it is.
OWNERS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "directory": Path.mkdir,
    "no-text": lambda path: path.write_bytes(b"\xff"),
    "no-number": lambda path: path.write_text(label("²")),
    "large": lambda path: path.write_bytes(b"1" * 2**20),
}


def test_directories_of_others_stay_and_end_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of this user that are left by a process that has ended are removed."""
    monkeypatch.setattr(staged_code.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(cluster, "SESSIONS", tmp_path)
    odd = [*(each for each in NO_NUMBERS if len(each) < 100), "1-\udcff"]
    others = [tmp_path / f"{staged_code.PREFIX}{name}-x" for name in odd]
    others += [tmp_path / f"{cluster.PREFIX}{kind}" for kind in OWNERS]
    left = [tmp_path / f"{staged_code.PREFIX}999999999-x", tmp_path / f"{cluster.PREFIX}x"]
    for directory in (*others, *left):
        directory.mkdir()
        kind = directory.name.removeprefix(cluster.PREFIX)
        OWNERS.get(kind, lambda path: path.write_text(label("999999999")))(directory / cluster.OWNER)
    link = tmp_path / f"{staged_code.PREFIX}999999998-x"
    link.symlink_to(left[0])
    user = os.geteuid()
    for of_another in (True, False):
        monkeypatch.setattr(os, "geteuid", lambda of_another=of_another: user + of_another)
        staged_code._remove_stale()
        assert cluster.remove_sessions() == (not of_another)
        assert {each.exists() for each in left} == {of_another}
    assert link.is_symlink()
    assert all(other.exists() for other in others)


def test_files_with_digits_of_other_scripts_are_no_events(tmp_path: Path) -> None:
    (tmp_path / "rank-1٣.jsonl").write_text("{}\n")
    assert EventReader(tmp_path).new() == []
