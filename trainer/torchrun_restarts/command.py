"""The command line of a node's torchrun agent. Pure."""

from __future__ import annotations

import sys

from trainer.spec.run_spec import RunSpec

BACKEND = "shardyard"  # the name under which our rendezvous backend is registered
MONITOR_S = 0.2  # between an agent's checks of its ranks and of the rendezvous


def torchrun(spec: RunSpec, endpoint: str, log_dir: str) -> tuple[str, ...]:
    """The agent's command. Its environment has SHARDYARD_NODE and the variables of its ranks.

    Args:
        spec: the run.
        endpoint: HOST:PORT where node 0's agent listens, or the path of a file to which it writes the
            port of this machine that it has bound, so that no other process can take the port first.
        log_dir: torchrun's.
    """
    return (
        *(sys.executable, "-m", "trainer.torchrun_restarts"),
        f"--nnodes={spec.nodes}",
        f"--nproc-per-node={spec.processes_per_node}",
        f"--rdzv-backend={BACKEND}",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={spec.key}",
        # Each agent counts its own; the rendezvous counts those of the run, and stops first.
        f"--max-restarts={spec.restarts}",
        f"--monitor-interval={MONITOR_S}",
        f"--log-dir={log_dir}",
        *("-m", "trainer"),
    )
