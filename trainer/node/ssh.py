"""ssh keys and configuration for one Open MPI run.

Each node creates a host key and the launcher creates a client key when their containers start, in memory
only. The rank assignment carries the public keys. The launcher accepts only these host keys, and its own
key can only run commands, from its address.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

from trainer.node.rank_assignment import AssignmentError

PORT = 2222  # sshd is unprivileged, so it cannot bind port 22
USER = "shardyard"
START_S = 20.0


def make_key(path: Path) -> str:
    """Create a key pair in `path` and `path`.pub, replacing any old one. Returns the public key."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)
    return path.with_suffix(".pub").read_text().strip()


def server_config(directory: Path) -> str:
    """sshd_config: public keys only, one user, no forwarding, no root."""
    return "\n".join(
        [
            f"Port {PORT}",
            f"HostKey {directory}/host_key",
            f"PidFile {directory}/sshd.pid",
            f"AuthorizedKeysFile {directory}/authorized_keys",
            "AuthenticationMethods publickey",
            f"AllowUsers {USER}",
            "UsePAM no",
            "StrictModes no",  # the directory is a tmpfs with the mode of /tmp
            "DisableForwarding yes",
            "PrintMotd no",
            "LogLevel ERROR",
            "",
        ]
    )


def authorized_key(public_key: str, launcher: str) -> str:
    """The authorized_keys line that lets the launcher run commands from its address."""
    return f'restrict,from="{launcher}" {public_key}\n'


def client_config(directory: Path) -> str:
    """The launcher's ssh_config: the given host keys and no others."""
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
    """The known_hosts file. keys: pairs of address and public host key."""
    return "".join(f"[{address}]:{PORT} {key}\n" for address, key in keys)


def start_server(directory: Path) -> subprocess.Popen[bytes]:
    """Start sshd and wait until it listens. Raises AssignmentError if it does not start."""
    config = directory / "sshd_config"
    config.write_text(server_config(directory))
    (directory / "sshd.pid").unlink(missing_ok=True)
    server = subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(config)])
    deadline = time.monotonic() + START_S
    while not (directory / "sshd.pid").exists():  # sshd writes it once it listens
        if server.poll() is not None or time.monotonic() > deadline:
            raise AssignmentError("sshd did not start; its error is above")
        time.sleep(0.02)
    return server
