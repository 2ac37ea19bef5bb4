"""Mistakes in the set-up of a container: ssh that is too open, units of counters, privileges kept."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.conftest import PROJECT
from trainer.core.cgroup import Usage, measure
from trainer.node import privileges, ssh
from trainer.node.privileges import drop_privileges_to_owner, make_writable_for_nodes
from trainer.node.rank_assignment import AssignmentError

# ssh

CLIENT = """
StrictHostKeyChecking yes, UserKnownHostsFile /keys/known_hosts, GlobalKnownHostsFile /dev/null,
IdentityFile /keys/key, IdentitiesOnly yes, BatchMode yes, Port 2222, User shardyard
"""
SERVER = """
AuthenticationMethods publickey, DisableForwarding yes, UsePAM no, AllowUsers shardyard, Port 2222,
HostKey /keys/host_key, PidFile /keys/sshd.pid, AuthorizedKeysFile /keys/authorized_keys
"""


def test_ssh_accepts_only_keys_of_this_run() -> None:
    for config, expected in ((ssh.client_config, CLIENT), (ssh.server_config, SERVER)):
        found = [line.strip() for line in config(Path("/keys")).splitlines() if line.strip()]
        assert len({line.partition(" ")[0] for line in found}) == len(found)
        assert {*found} >= {line.strip() for line in expected.split(",")}


def test_keys_are_regenerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = tmp_path / "ssh" / "key", []

    def keygen(argv: list[str], check: bool) -> None:
        assert not path.exists()  # ssh-keygen asks before it overwrites a file
        assert (check, argv[0], argv[-2:]) == (True, "ssh-keygen", ["-f", str(path)])
        assert argv[argv.index("-N") + 1] == ""  # without a passphrase
        made.append(argv)
        path.write_text("private")
        path.with_suffix(".pub").write_text(f"ssh-ed25519 {len(made)}\n")

    monkeypatch.setattr(subprocess, "run", keygen)
    assert [ssh.make_key(path), ssh.make_key(path)] == ["ssh-ed25519 1", "ssh-ed25519 2"]


def test_sshd_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda argv: SimpleNamespace(poll=lambda: 255))
    (tmp_path / "sshd.pid").write_text("of an earlier start")
    with pytest.raises(AssignmentError, match="sshd did not start"):
        ssh.start_server(tmp_path)


# Usage

NETWORK = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls
    lo:    1000      10    0    0    0     0          0         0     1000      10    0    0    0     0
  eth0:12345608    4000    0    0    0     0          0         0  7654021    3000    0    0    0     0
 eth01:       2       2    0    0    0     0          0         0        2       2    0    0    0     0
 link0:      70       1    0    0    0     0          0         0      300       1    0    0    0     0
"""
VERSION_2 = {
    "cpu.stat": "usage_usec 2500000\nuser_usec 2000000\nsystem_usec 500000\nthrottled_usec 1250000\n",
    "cpu.max": "40000 100000\n",
    "memory.peak": "314572800\n",
    "memory.events": "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n",
}
VERSION_1 = {
    "cpuacct/cpuacct.usage": "2500000000\n",
    "cpu/cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 1250000000\n",
    "cpu/cpu.cfs_quota_us": "40000\n",
    "cpu/cpu.cfs_period_us": "100000\n",
    "memory/memory.max_usage_in_bytes": "314572800\n",
    "memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
}
TRAFFIC = {"sent_bytes": 7654321, "received_bytes": 12345678}
WHOLE = Usage(cpu_s=2.5, throttled_s=1.25, memory_peak_mb=300.0, **TRAFFIC, out_of_memory=2, cpus=0.4)


def kernel(directory: Path, files: dict[str, str]) -> Path:
    """A fake /sys/fs/cgroup."""
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def network(directory: Path, text: str = NETWORK) -> Path:
    return kernel(directory, {"dev": text}) / "dev"


@pytest.mark.parametrize(
    ("files", "changed", "unknown"),
    [
        (VERSION_1, {}, {}),
        (VERSION_2, {}, {}),
        (VERSION_2, {"memory.peak": ""}, {"memory_peak_mb": None}),  # before Linux 5.19
        (VERSION_2, {"memory.events": ""}, {"out_of_memory": 0}),
        (VERSION_2, {"cpu.stat": "usage_usec 2500000\n"}, {"throttled_s": None}),  # without a quota
        (VERSION_1, {"cpuacct/cpuacct.usage": ""}, {"cpu_s": None}),
        (VERSION_1, {"cpu/cpu.stat": ""}, {"throttled_s": None}),
        (VERSION_2, {"cpu.max": "max 100000\n"}, {"cpus": None}),
        (VERSION_1, {"cpu/cpu.cfs_quota_us": "-1\n"}, {"cpus": None}),
        (VERSION_1, {"memory/memory.max_usage_in_bytes": ""}, {"memory_peak_mb": None}),
    ],
)
def test_usage(
    tmp_path: Path, files: dict[str, str], changed: dict[str, str], unknown: dict[str, Any]
) -> None:
    """Of the container's network and a switch. Without text, a file is not there."""
    left = {name: text for name, text in {**files, **changed}.items() if text}
    found = measure(kernel(tmp_path / "cgroup", left), network(tmp_path))
    assert found == WHOLE.model_copy(update=unknown)


def test_missing_network_interface(tmp_path: Path) -> None:
    renamed = NETWORK.replace(" eth0:", " eth7:").replace("link0:", "link1:")
    for text in ("", renamed, "eth0: 1 2\n", "eth0: x" * 9):
        found = measure(kernel(tmp_path / "cgroup", VERSION_2), network(tmp_path, text))
        assert found == WHOLE.model_copy(update={"sent_bytes": None, "received_bytes": None})
    assert measure(tmp_path / "no", tmp_path / "none") == Usage()


def test_usage_since_another() -> None:
    traffic = {"sent_bytes": 654321, "received_bytes": 345678}
    before = Usage(cpu_s=1.0, throttled_s=0.25, memory_peak_mb=299.0, **traffic, out_of_memory=1, cpus=4.0)
    traffic = {"sent_bytes": 7000000, "received_bytes": 12000000}
    since = Usage(cpu_s=1.5, throttled_s=1.0, memory_peak_mb=300.0, **traffic, out_of_memory=1, cpus=0.4)
    assert WHOLE.since(before) == since
    assert WHOLE.since(WHOLE).memory_peak_mb is None  # it has not risen
    assert Usage().since(WHOLE) == Usage()
    assert (WHOLE.since(Usage()).cpu_s, WHOLE.since(Usage()).sent_bytes) == (None, None)


# Privileges

SPEC, RESULTS = Path("/spec.json"), Path("/results")
GIVEN = ("chown", RESULTS, 1000, 1001)
# setresuid comes last: it drops the capabilities that the others need.
TAKEN = [("setgroups", []), ("setresgid", 1001, 1001, 1001), ("setresuid", 1000, 1000, 1000)]


@pytest.mark.parametrize(
    ("uid", "owner", "owner_of_results", "content", "calls"),
    [
        (0, 1000, 0, [], [GIVEN, *TAKEN]),
        (0, 1000, 0, ["MNIST"], TAKEN),
        (0, 1000, 1007, [], TAKEN),
        (0, 0, 0, [], [("drop_capabilities",)]),  # root stays root
        (1000, 1000, 0, [], []),
    ],
)
def test_root_switches_to_the_owner_and_gives_it_new_directories(
    monkeypatch: pytest.MonkeyPatch, uid: int, owner: int, owner_of_results: int, content: Any, calls: Any
) -> None:
    made: list[tuple[Any, ...]] = []
    owners, original = {SPEC: owner, RESULTS: owner_of_results}, Path.stat

    def status(path: Path, **options: Any) -> Any:
        if path not in owners:
            return original(path, **options)
        return SimpleNamespace(st_uid=owners[path], st_gid=owners[path] + 1, st_mode=stat.S_IFREG)

    def fake(owner: Any, name: str) -> None:
        monkeypatch.setattr(owner, name, lambda *arguments: made.append((name, *arguments)))

    for call in ("chown", "setgroups", "setresgid", "setresuid"):
        fake(os, call)
    fake(privileges, "drop_capabilities")
    monkeypatch.setattr(os, "getuid", lambda: uid)
    monkeypatch.setattr(Path, "stat", status)
    monkeypatch.setattr(Path, "iterdir", lambda path: iter([path / name for name in content]))
    drop_privileges_to_owner(SPEC, RESULTS)
    assert made == calls


def test_empty_checkpoint_directory_becomes_world_writable(tmp_path: Path) -> None:
    for empty, mode in ((True, 0o1777), (False, 0o755)):
        tmp_path.chmod(0o755)
        if not empty:
            (tmp_path / "mine").touch()
        make_writable_for_nodes(tmp_path)
        assert stat.S_IMODE(tmp_path.stat().st_mode) == mode
    make_writable_for_nodes(tmp_path / "absent")


def test_capabilities_are_dropped() -> None:
    code = "from trainer.node.privileges import drop_capabilities as drop; drop(); "
    code += "print(open('/proc/self/status').read())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh")} == {0}
