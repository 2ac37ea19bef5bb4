"""The command of torchrun's agent on one node. Pure."""

from __future__ import annotations

import sys

from trainer.spec.run_spec import RunSpec

BACKEND = "shardyard"  # as torchrun calls our rendezvous
MONITOR_S = 0.2  # how often an agent looks after its ranks, and whether others want to meet again


def torchrun(spec: RunSpec, meet: str, log_dir: str) -> tuple[str, ...]:
    """The agent's command; its environment has SHARDYARD_NODE, its number, and what ranks are told.

    meet: HOST:PORT where node 0's agent waits for the others; or the path of a file in which it says at
    which port of this machine it does, so that there is none to lose to another process.
    """
    return (
        *(sys.executable, "-m", "trainer.elastic"),
        f"--nnodes={spec.nodes}",
        f"--nproc-per-node={spec.processes_per_node}",
        f"--rdzv-backend={BACKEND}",
        f"--rdzv-endpoint={meet}",
        f"--rdzv-id={spec.key}",
        # Of each agent; the rendezvous counts attempts of the whole run, so none runs out of them before.
        f"--max-restarts={spec.restarts}",
        f"--monitor-interval={MONITOR_S}",
        f"--log-dir={log_dir}",
        *("-m", "trainer"),
    )
