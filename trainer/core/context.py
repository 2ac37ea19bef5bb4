"""NodeContext: a rank's identity in the run, and where it finds its data and its peers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class NodeContext:
    """Plain data about one rank.

    Args:
        rank: 0-based rank in the run.
        size: number of ranks in the run.
        transport: name of the transport that connects the ranks.
        data_dir: directory of the datasets.
        local_rank: 0-based rank within the node, which selects the GPU; 0 where ranks share a process.
        rendezvous: where the ranks of torch.distributed meet: a file's path, a URL such as
            tcp://node-1:29500 (see comm.rendezvous), or, for a run that torchrun restarts, HOST:PORT of
            torchrun's store.
        attempt: how many times torchrun has restarted the ranks; None where it does not restart them.
        membership: file that shows which ranks are alive; None for a run that stops when one is lost.
        incarnation: how often this rank was started again in such a run.
        oversubscribed: a rank has less than one core, so waiting must not burn CPU time.
        timeout_s: longest wait for another rank.
        out_dir: directory for results; None keeps none.
        checkpoint_dir: directory for checkpoints; None for a run without checkpoints.
        stop_dir: directory through which ranks agree where to stop; None if the run cannot be requeued.
        requeues: how often a batch system has started the run again.
        cpu_quota: CPU quota of its node in cores, which must be in force before it trains; None: do not
            wait for it.
        linked: addresses of the other nodes, which must be reached through the switch of the run's links.
        throttle_mark: file that shows that the quota is in force, where no control group enforces it.
    """

    rank: int
    size: int
    transport: str
    data_dir: Path
    local_rank: int = 0
    rendezvous: str = ""
    attempt: int | None = None
    membership: Path | None = None
    incarnation: int = 0
    oversubscribed: bool = False
    timeout_s: float = 600.0
    out_dir: Path | None = None
    checkpoint_dir: Path | None = None
    stop_dir: Path | None = None
    requeues: int = 0
    cpu_quota: float | None = None
    linked: tuple[str, ...] = ()
    throttle_mark: Path | None = None
