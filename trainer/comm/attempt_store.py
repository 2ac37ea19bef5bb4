"""Where the ranks of one attempt meet, at its start and at its end."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainer.core.context import NodeContext

POLL_S = 0.02


def prefix(attempt: int) -> str:
    """Of the keys of one attempt in torchrun's store."""
    return f"attempt {attempt}"


def attempt_store(context: NodeContext) -> Any:
    """Where the ranks of this attempt, and of no other, leave word for each other: torch's Store.

    What a lost attempt has left there would be addresses at which nobody answers any more.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    host, _, port = context.rendezvous.rpartition(":")
    timeout = timedelta(seconds=context.timeout_s)
    store = TCPStore(host, int(port), is_master=False, timeout=timeout)
    return PrefixStore(f"{prefix(context.attempt or 0)}/ranks", store)


def exit_barrier(context: NodeContext) -> None:
    """Return when every rank of this attempt has given its result.

    After that it does not matter any more who is lost, and to whom. A rank that left before could not be
    started again with the others: for its agent it has ended well, and the agent meets nobody any more.
    """
    store = attempt_store(context)
    ended = store.add("ended", 1)
    while ended < context.size:  # or until the agent ends this process, for another attempt
        time.sleep(POLL_S)
        ended = store.add("ended", 0)
