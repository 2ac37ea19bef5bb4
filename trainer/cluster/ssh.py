"""Keys and configuration of ssh for one run of Open MPI.

Nothing outlives the containers: a node's host key and the launcher's key are made when they start, in
memory, and their public halves travel with the roll call. Every host key is known in advance, so an
unknown one is refused; the launcher's key may do nothing but run commands, from its address alone.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from trainer.cluster.rank_assignment import AssignmentError

PORT = 2222  # sshd does not run as root, so it cannot have 22
USER = "shardyard"
START_S = 20.0


def make_key(path: Path) -> str:
    """A fresh key pair in `path` and `path`.pub; returns the public half, one line."""
    # A container that is started again has the tmpfs of its first life no more, but a test may.
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text().strip()


def server_config(directory: Path) -> str:
    """sshd_config: keys only, one user, no forwarding, and nothing that needs root."""
    return "\n".join(
        [
            f"Port {PORT}",
            f"HostKey {directory}/host_key",
            f"PidFile {directory}/sshd.pid",
            f"AuthorizedKeysFile {directory}/authorized_keys",
            "AuthenticationMethods publickey",
            f"AllowUsers {USER}",
            "UsePAM no",
            "StrictModes no",  # its directory is a tmpfs of this container, with the mode of /tmp
            "DisableForwarding yes",
            "PrintMotd no",
            "LogLevel ERROR",
            "",
        ]
    )


def authorized_key(public_key: str, launcher: str) -> str:
    """The line of authorized_keys that lets the launcher at this address run commands."""
    return f'restrict,from="{launcher}" {public_key}\n'


def client_config(directory: Path) -> str:
    """ssh_config of the launcher."""
    return "\n".join(
        [
            "Host *",
            f"  Port {PORT}",
            f"  User {USER}",
            f"  IdentityFile {directory}/key",
            "  IdentitiesOnly yes",
            "  BatchMode yes",
            "  StrictHostKeyChecking yes",
            f"  UserKnownHostsFile {directory}/known_hosts",
            "  GlobalKnownHostsFile /dev/null",
            "  ConnectTimeout 20",
            "  ServerAliveInterval 5",
            "  LogLevel ERROR",
            "",
        ]
    )


def known_hosts(keys: Iterable[tuple[str, str]]) -> str:
    """The file that names every node's host key; keys: pairs of address and public key."""
    return "".join(f"[{address}]:{PORT} {key}\n" for address, key in keys)


def start_server(directory: Path) -> subprocess.Popen[bytes]:
    """sshd, ready to be connected to. Raises RollError if it does not come up."""
    config = directory / "sshd_config"
    config.write_text(server_config(directory))
    (directory / "sshd.pid").unlink(missing_ok=True)
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(config)])
    deadline = time.monotonic() + START_S
    while not (directory / "sshd.pid").exists():  # written when it listens
        if server.poll() is not None or time.monotonic() > deadline:
            raise AssignmentError("sshd did not start; its complaint is above")
        time.sleep(0.02)
    return server
