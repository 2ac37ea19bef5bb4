"""Attacks with names and labels that every user of the machine can write, and containers, too.

The promise: what others put into /tmp or into the environment of a process ends no command, and no command
waits for it or removes it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator import identity as identities
from orchestrator.identity import LABEL, SINCE, identity, is_gone, label_of, labelled
from orchestrator.runtimes.ray import driver_client
from orchestrator.sweeps import staged_code
from orchestrator.watch.files import log_names
from trainer.core.events import EventReader
from trainer.core.whole_number import whole_number

NO_NUMBERS = ["", "²", "٣", "-1", "+1", " 1", "1\n", "1_0", "0x1", "99999999999999999999", "9" * 5000]


@pytest.mark.parametrize("text", NO_NUMBERS)
def test_a_number_is_ascii_digits_up_to_a_limit(text: str) -> None:
    assert whole_number(text, 2**31) is None


def test_a_number_is_read_up_to_its_limit() -> None:
    assert [whole_number(text, 16) for text in ("0", "07", "16", "17")] == [0, 7, 16, None]


@pytest.mark.parametrize("number", NO_NUMBERS)
def test_a_label_without_a_pid_is_of_no_orchestrator_that_has_ended(number: str) -> None:
    assert not is_gone(identity().replace(str(os.getpid()), number, 1))


@pytest.fixture
def labelled_process() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose environment is a label that no orchestrator writes."""
    since = identity().partition(" ")[2]
    process = subprocess.Popen(["sleep", "60"], env={LABEL: "²", SINCE: since, "PATH": os.environ["PATH"]})
    while psutil.Process(process.pid).name() != "sleep":  # until then its environment is ours
        pass
    yield process
    process.kill()
    process.wait()


def test_a_process_with_a_label_without_a_pid_is_not_ours(
    labelled_process: subprocess.Popen[bytes],
) -> None:
    found = {process.pid: label_of(environment) for process, environment in labelled()}
    assert labelled_process.pid not in found


def test_a_name_of_a_process_may_have_any_bytes() -> None:
    named = "open('/proc/self/comm', 'wb').write(b'\\xff) (\\xfe'); print(flush=True); input()"
    with subprocess.Popen(["python3", "-c", named], stdin=-1, stdout=-1) as process:
        assert process.stdout
        process.stdout.readline()
        assert not is_gone(identity(process.pid))
        process.kill()


@pytest.mark.parametrize("name", [*(each for each in NO_NUMBERS if len(each) < 100), "1-\udcff"])
def test_directories_with_the_prefix_of_copies_end_no_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(staged_code.tempfile, "gettempdir", lambda: str(tmp_path))
    other = tmp_path / f"{staged_code.PREFIX}{name}-x"
    other.mkdir()
    staged_code._remove_stale()
    assert other.exists()


def test_directories_of_other_users_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One nested very deeply would end the command of root that removes it."""
    monkeypatch.setattr(staged_code.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(driver_client, "SESSIONS", tmp_path)
    copies, session = tmp_path / f"{staged_code.PREFIX}999999999-x", tmp_path / f"{driver_client.PREFIX}x"
    gone = identity().replace(str(os.getpid()), "999999999", 1)
    for directory in (copies, session):
        directory.mkdir()
        (directory / driver_client.OWNER).write_text(gone)
    link = tmp_path / f"{staged_code.PREFIX}999999998-x"
    link.symlink_to(copies)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    staged_code._remove_stale()
    assert driver_client.remove_sessions() == 0
    assert all(each.exists() for each in (copies, session))
    monkeypatch.setattr(os, "geteuid", lambda: user)
    staged_code._remove_stale()
    assert driver_client.remove_sessions() == 1
    assert not any(each.exists() for each in (copies, session))
    assert link.is_symlink()


OWNERS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "directory": Path.mkdir,
    "no-text": lambda path: path.write_bytes(b"\xff"),
    "no-number": lambda path: path.write_text(identities.identity().replace(str(os.getpid()), "²", 1)),
    "large": lambda path: path.write_bytes(b"1" * 2**20),
}


@pytest.mark.parametrize("kind", OWNERS)
def test_the_owner_of_a_session_of_ray_may_be_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(driver_client, "SESSIONS", tmp_path)
    session = tmp_path / f"{driver_client.PREFIX}x"
    session.mkdir()
    OWNERS[kind](session / driver_client.OWNER)
    assert driver_client.remove_sessions() == 0
    assert session.exists()


def test_logs_with_digits_of_other_scripts_are_listed(tmp_path: Path) -> None:
    for name in ("٣", "a", "node-10", "node-2", "²"):
        (tmp_path / f"{name}.log").touch()
    assert log_names(tmp_path) == ["a", "node-2", "node-10", "²", "٣"]


def test_a_rank_has_one_file_of_events(tmp_path: Path) -> None:
    (tmp_path / "rank-1٣.jsonl").write_text("{}\n")
    assert EventReader(tmp_path).new() == []
