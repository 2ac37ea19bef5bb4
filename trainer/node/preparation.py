"""What a node outside of a container must have before ranks start: the run's files, and its dataset."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from trainer.node.rank_assignment import RankAssignment

# In a process of its own: a dataset may be a user's, and its download may need torch.
DOWNLOAD = (
    "import sys, pathlib; from trainer.spec.run_spec import RunSpec; "
    "RunSpec.model_validate_json(sys.argv[1]).dataset.prepare(pathlib.Path(sys.argv[2]))"
)
ERROR_CHARACTERS = 300


class Refusal(Exception):
    """Ranks cannot start on this node. The message says why."""


def prepared(assignment: RankAssignment) -> RankAssignment:
    """The assignment, with the directory in which this node has the dataset. Raises Refusal."""
    site, dataset = assignment.site, assignment.spec.dataset
    for name, digest in site.seen.items():
        found = None
        with suppress(OSError):
            found = sha256(Path(name).read_bytes()).hexdigest()
        if found != digest:
            raise _refusal(f"does not see {Path(name).parent}, which all nodes share")
    # Containers and jobs have their data; what is missing there is an error of the rank.
    if not site.seen or all((Path(site.data) / name).exists() for name in dataset.files):
        return assignment
    if not site.downloads:
        hint = f"; {site.downloads_option} lets it download" if site.downloads_option else ""
        raise _refusal(f"does not see the dataset in {site.data}{hint}")
    argv = [sys.executable, "-c", DOWNLOAD, assignment.spec.model_dump_json(), site.downloads]
    loading = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if loading.returncode:
        raise _refusal(f"has no data: {loading.stderr.strip()[-ERROR_CHARACTERS:]}")
    return replace(assignment, site=site.model_copy(update={"data": site.downloads}))


def _refusal(reason: str) -> Refusal:
    return Refusal(f"{socket.gethostname()} {reason}")
