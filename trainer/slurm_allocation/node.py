"""`python -m trainer.slurm_allocation.node`: keeps the warm parent of one node.

It ends with its standard input. The leader writes a word to it, and it prints a Reply: one line each.
"""

from __future__ import annotations

import os
import sys
from typing import Literal, get_args

from trainer.core.record import Record, Text
from trainer.warm.process import EXIT_S, ParentError, ParentProcess

# Before a run; after a run that was ok; after one that was not.
Word = Literal["ensure", "settle", "explain"]


class Reply(Record):
    """The state of a node. reason: why its warm parent was replaced, or how it has failed.

    usable: whether ranks can start on the node.
    """

    node: Text
    reason: Text | None = None
    usable: bool = True


def main() -> None:
    """Answer the leader. The warm parent ends with this process."""
    node = os.environ["SLURMD_NODENAME"]
    # Machines may run several nodes of Slurm, which share abstract names of sockets.
    parent = ParentProcess(f"shardyard-{os.environ['SLURM_JOB_ID']}-{node}", {})
    for line in sys.stdin:
        word = line.strip()
        if word not in get_args(Word):
            raise ValueError(f"{word!r} is no word of the leader")
        print(_reply(parent, node, word).model_dump_json(), flush=True)
    parent.close()


def _reply(parent: ParentProcess, node: str, word: str) -> Reply:
    if word == "ensure":
        try:
            return Reply(node=node, reason=parent.ensure())
        except ParentError as error:
            return Reply(node=node, reason=str(error), usable=False)
    parent.wait_until_idle()
    # Clients end a moment before the end of their parent can be seen.
    return Reply(node=node, reason=parent.failure(EXIT_S if word == "explain" else 0.0))


if __name__ == "__main__":
    main()
