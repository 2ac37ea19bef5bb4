"""The key-value store and the exit barrier of one attempt of a restartable run."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.core.context import NodeContext

POLL_S = 0.02


def prefix(attempt: int) -> str:
    """The prefix of an attempt's keys in torchrun's store."""
    return f"attempt {attempt}"


def attempt_store(context: NodeContext) -> Any:
    """A torch Store of the ranks of this attempt.

    Attempts do not share keys: a failed attempt leaves addresses at which no process listens.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, _, port = context.rendezvous.rpartition(":")
    timeout = timedelta(seconds=context.timeout_s)
    store = TCPStore(host, int(port), is_master=False, timeout=timeout)
    return PrefixStore(f"{prefix(context.attempt or 0)}/ranks", store)


def exit_barrier(context: NodeContext) -> None:
    """Block until every rank of this attempt has written its result.

    As the exit barrier of torchelastic: a rank that ended earlier could not take part in a restart, since
    its agent would already have succeeded and left the rendezvous.
    """
    store = attempt_store(context)
    ended = store.add("ended", 1)
    while ended < context.size:  # the agent ends this process to restart the ranks
        time.sleep(POLL_S)
        ended = store.add("ended", 0)
