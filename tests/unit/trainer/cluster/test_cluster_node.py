"""Set-up of a container: ssh, resource usage, and the owner of its files."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.conftest import PROJECT
from trainer.cluster import privileges, ssh
from trainer.cluster.privileges import drop_privileges_to_owner, make_writable_for_nodes
from trainer.cluster.rank_assignment import AssignmentError
from trainer.core.cgroup import Usage, measure, quota, wait_for_quota

# ssh


def settings(text: str) -> dict[str, str]:
    """The lines of a configuration by keyword; fails if a keyword occurs twice."""
    pairs = [line.strip().partition(" ") for line in text.splitlines() if line.strip()]
    assert len({keyword for keyword, _, _ in pairs}) == len(pairs)
    return {keyword: value for keyword, _, value in pairs}


def test_client_accepts_only_known_hosts() -> None:
    found = settings(ssh.client_config(Path("/keys")))
    assert found["StrictHostKeyChecking"] == "yes"
    assert found["UserKnownHostsFile"] == "/keys/known_hosts"
    assert found["GlobalKnownHostsFile"] == "/dev/null"
    assert found["IdentityFile"] == "/keys/key"
    assert found["IdentitiesOnly"] == found["BatchMode"] == "yes"  # no prompt, no other key


def test_server_accepts_only_keys_and_forwards_nothing() -> None:
    found = settings(ssh.server_config(Path("/keys")))
    assert found["AuthenticationMethods"] == "publickey"
    assert found["DisableForwarding"] == "yes"
    assert found["UsePAM"] == "no"
    assert found["AllowUsers"] == ssh.USER
    assert int(found["Port"]) > 1023  # unprivileged
    assert [found[name] for name in ("HostKey", "PidFile", "AuthorizedKeysFile")] == [
        "/keys/host_key",
        "/keys/sshd.pid",
        "/keys/authorized_keys",
    ]


def test_client_and_server_agree_on_port_and_user() -> None:
    client, server = settings(ssh.client_config(Path("/k"))), settings(ssh.server_config(Path("/k")))
    assert (client["Port"], client["User"]) == (server["Port"], server["AllowUsers"])


def test_launcher_s_key_is_bound_to_its_address() -> None:
    assert ssh.authorized_key("ssh-ed25519 AAAA", "10.0.0.9") == (
        'restrict,from="10.0.0.9" ssh-ed25519 AAAA\n'
    )


def test_known_hosts() -> None:
    keys = [("10.0.0.1", "ssh-ed25519 AAAA"), ("10.0.0.2", "ssh-ed25519 BBBB")]
    assert ssh.known_hosts(keys) == "[10.0.0.1]:2222 ssh-ed25519 AAAA\n[10.0.0.2]:2222 ssh-ed25519 BBBB\n"
    assert ssh.known_hosts([]) == ""


def test_keys_are_regenerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, made = tmp_path / "ssh" / "key", []

    def keygen(argv: list[str], check: bool) -> None:
        assert check
        assert not path.exists()  # ssh-keygen asks before it overwrites a file
        assert argv[0] == "ssh-keygen"
        assert argv[-2:] == ["-f", str(path)]
        made.append(argv)
        path.write_text("private")
        path.with_suffix(".pub").write_text(f"ssh-ed25519 {len(made)}\n")

    monkeypatch.setattr(subprocess, "run", keygen)
    assert [ssh.make_key(path), ssh.make_key(path)] == ["ssh-ed25519 1", "ssh-ed25519 2"]
    assert all(argv[argv.index("-N") + 1] == "" for argv in made)  # without a passphrase


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
 veth0:       1       1    0    0    0     0          0         0        1       1    0    0    0     0
  eth0:12345678    4000    0    0    0     0          0         0  7654321    3000    0    0    0     0
 eth01:       2       2    0    0    0     0          0         0        2       2    0    0    0     0
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
WHOLE = Usage(
    cpu_s=2.5,
    throttled_s=1.25,
    memory_peak_mb=300.0,
    sent_bytes=7654321,
    received_bytes=12345678,
    out_of_memory=2,
    cpus=0.4,
)


def kernel(directory: Path, files: dict[str, str]) -> Path:
    """A fake /sys/fs/cgroup."""
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def network(directory: Path, text: str = NETWORK) -> Path:
    (directory / "dev").write_text(text)
    return directory / "dev"


@pytest.mark.parametrize("files", [VERSION_1, VERSION_2], ids=["v1", "v2"])
def test_usage(tmp_path: Path, files: dict[str, str]) -> None:
    assert measure(kernel(tmp_path / "cgroup", files), network(tmp_path)) == WHOLE


@pytest.mark.parametrize(
    ("files", "lacking", "changed"),
    [
        (VERSION_2, "memory.peak", {"memory_peak_mb": None}),  # before Linux 5.19
        (VERSION_2, "memory.events", {"out_of_memory": 0}),
        (VERSION_1, "cpuacct/cpuacct.usage", {"cpu_s": None}),
        (VERSION_1, "cpu/cpu.stat", {"throttled_s": None}),
        (
            VERSION_1,
            "memory/memory.max_usage_in_bytes",
            {"memory_peak_mb": None},
        ),
    ],
)
def test_unknown_counters_are_none(
    tmp_path: Path, files: dict[str, str], lacking: str, changed: dict[str, Any]
) -> None:
    remaining = {name: text for name, text in files.items() if name != lacking}
    expected = WHOLE.model_copy(update=changed)
    assert measure(kernel(tmp_path / "cgroup", remaining), network(tmp_path)) == expected


def test_usage_since_another() -> None:
    before = Usage(
        cpu_s=1.0,
        throttled_s=0.25,
        memory_peak_mb=299.0,
        sent_bytes=654321,
        received_bytes=345678,
        out_of_memory=1,
        cpus=4.0,
    )
    assert WHOLE.since(before) == Usage(
        cpu_s=1.5,
        throttled_s=1.0,
        memory_peak_mb=300.0,
        sent_bytes=7000000,
        received_bytes=12000000,
        out_of_memory=1,
        cpus=0.4,
    )


def test_peak_that_has_not_risen_is_unknown() -> None:
    found = WHOLE.since(WHOLE)
    assert found.memory_peak_mb is None
    assert (found.cpu_s, found.sent_bytes, found.out_of_memory) == (0, 0, 0)


@pytest.mark.parametrize(("now", "before"), [(Usage(), WHOLE), (WHOLE, Usage()), (Usage(), Usage())])
def test_usage_since_is_unknown_where_either_is(now: Usage, before: Usage) -> None:
    found = now.since(before)
    assert (found.cpu_s, found.throttled_s) == (None, None)
    assert (found.sent_bytes, found.received_bytes) == (None, None)
    assert found.memory_peak_mb == now.memory_peak_mb


def test_kernel_without_control_groups(tmp_path: Path) -> None:
    assert measure(tmp_path / "no", tmp_path / "none") == Usage()


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({"cpu.max": "25000 100000\n"}, 0.25),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "150000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1.5),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_cpu_quota(tmp_path: Path, files: dict[str, str], cpus: float | None) -> None:
    cgroup = kernel(tmp_path / "cgroup", files)
    assert quota(cgroup) == cpus
    assert wait_for_quota(cpus or 1.0, 0.0, cgroup) == (cpus is not None)
    assert not wait_for_quota(0.1, 0.0, cgroup)


def test_cpu_quota_that_is_applied_later(tmp_path: Path) -> None:
    cgroup = kernel(tmp_path / "cgroup", {"cpu.max": "100000 100000\n"})
    later = threading.Timer(0.1, lambda: kernel(cgroup, {"cpu.max": "25000 100000\n"}))
    later.start()
    assert wait_for_quota(0.25, 10.0, cgroup)
    later.join()


def test_throttled_time_is_none_without_a_quota(tmp_path: Path) -> None:
    files = {**VERSION_2, "cpu.stat": "usage_usec 2500000\n"}
    found = measure(kernel(tmp_path / "cgroup", files), network(tmp_path))
    assert (found.cpu_s, found.throttled_s) == (2.5, None)


@pytest.mark.parametrize("text", ["", NETWORK.replace("  eth0:", "  eth7:"), "eth0: 1 2\n", "eth0: x" * 9])
def test_missing_network_interface(tmp_path: Path, text: str) -> None:
    found = measure(kernel(tmp_path / "cgroup", VERSION_2), network(tmp_path, text))
    assert (found.sent_bytes, found.received_bytes) == (None, None)
    assert found.cpu_s == 2.5


def test_network_interface_by_name(tmp_path: Path) -> None:
    found = measure(kernel(tmp_path / "cgroup", VERSION_2), network(tmp_path), interfaces=["lo"])
    assert (found.sent_bytes, found.received_bytes) == (1000, 1000)


# Privileges


class Kernel:
    """Owners of files, our UID, and the system calls made, in order."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        uid: int,
        owners: dict[Path, int],
        names: Sequence[str] = (),
    ) -> None:
        """names: files in the directory."""
        original = Path.stat
        self.calls: list[tuple[Any, ...]] = []
        monkeypatch.setattr(os, "getuid", lambda: uid)

        def status(path: Path, **options: Any) -> Any:
            if path not in owners:
                return original(path, **options)
            return SimpleNamespace(st_uid=owners[path], st_gid=owners[path] + 1, st_mode=stat.S_IFREG)

        monkeypatch.setattr(Path, "stat", status)
        monkeypatch.setattr(Path, "iterdir", lambda path: iter([path / name for name in names]))
        for call in ("chown", "setgroups", "setresgid", "setresuid"):
            monkeypatch.setattr(
                os, call, lambda *arguments, call=call: self.calls.append((call, *arguments))
            )


SPEC, RESULTS = Path("/spec.json"), Path("/results")
TAKEN: list[tuple[Any, ...]] = [
    ("setgroups", []),
    ("setresgid", 1001, 1001, 1001),
    ("setresuid", 1000, 1000, 1000),
]


def test_root_switches_to_the_owner_and_gives_it_new_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Kernel(monkeypatch, 0, {SPEC: 1000, RESULTS: 0}).calls
    drop_privileges_to_owner(SPEC, RESULTS)
    # setresuid comes last: it drops the capabilities that the others need.
    assert calls == [("chown", RESULTS, 1000, 1001), *TAKEN]


def test_nonempty_directory_of_root_keeps_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Kernel(monkeypatch, 0, {SPEC: 1000, RESULTS: 0}, names=["MNIST"]).calls
    drop_privileges_to_owner(SPEC, RESULTS)
    assert calls == TAKEN


def test_empty_checkpoint_directory_becomes_world_writable(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_writable_for_nodes(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1777
    tmp_path.chmod(0o755)
    (tmp_path / "mine").touch()
    make_writable_for_nodes(tmp_path)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    make_writable_for_nodes(tmp_path / "absent")


@pytest.mark.parametrize("owner", [1000, 1007])
def test_directory_of_another_user_keeps_its_owner(monkeypatch: pytest.MonkeyPatch, owner: int) -> None:
    calls = Kernel(monkeypatch, 0, {SPEC: 1000, RESULTS: owner}).calls
    drop_privileges_to_owner(SPEC, RESULTS)
    assert calls == TAKEN


def test_nothing_changes_for_an_unprivileged_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for uid in (10001, 1000):
        calls = Kernel(monkeypatch, uid, {SPEC: 1000, RESULTS: 0}).calls
        drop_privileges_to_owner(SPEC, RESULTS)
        assert calls == []


def test_root_stays_root_without_capabilities_for_a_spec_of_root(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Kernel(monkeypatch, 0, {SPEC: 0, RESULTS: 0}).calls
    monkeypatch.setattr(privileges, "drop_capabilities", lambda: calls.append(("capset",)))
    drop_privileges_to_owner(SPEC, RESULTS)
    assert calls == [("capset",)]


def test_capabilities_are_dropped() -> None:
    code = "from trainer.cluster.privileges import drop_capabilities as drop; drop(); "
    code += "print(open('/proc/self/status').read())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    status = dict(line.split(":\t", 1) for line in done.stdout.splitlines() if ":\t" in line)
    assert {int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh")} == {0}


def test_traffic_over_a_switch_counts(tmp_path: Path) -> None:
    plain = measure(kernel(tmp_path / "cgroup", VERSION_2), network(tmp_path))
    text = NETWORK + " link0: 70 1 0 0 0 0 0 0 500 1 0 0 0 0 0 0\n"
    found = measure(tmp_path / "cgroup", network(tmp_path, text))
    assert (plain.sent_bytes or 0) + 500 == found.sent_bytes
    assert (plain.received_bytes or 0) + 70 == found.received_bytes
