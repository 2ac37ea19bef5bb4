"""`python -m trainer.inspection`: answers requests, a line of JSON each, until its input ends.

Each request is served by a forked process, so that users' modules and random states do not meet, and so
that the files that a component opens are its own.
"""

from __future__ import annotations

import os
import sys
import tempfile

from trainer.inspection.forked import CallerEnded, Ended, forked
from trainer.inspection.inspect import inspect
from trainer.inspection.messages import Answer, Request


def main() -> None:
    """Serve requests, in a directory without files: a relative path in users' code would fail in a node."""
    import torch

    torch.set_num_threads(1)  # a thread pool would not survive the fork
    sys.dont_write_bytecode = True
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what users' code prints is not an answer
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        sys.pycache_prefix = empty  # so that imports open sources, and the files that they need are known
        for line in requests:
            print(_served(Request.model_validate_json(line)).model_dump_json(), file=answers, flush=True)


def _served(request: Request) -> Answer:
    try:
        (answer,) = forked(lambda send: send(inspect(request).model_dump_json()), caller=sys.stdin.fileno())
    except CallerEnded:
        sys.exit(1)
    except Ended as error:
        return Answer(error=f"the process that tried it {error}")
    return Answer.model_validate_json(answer)


if __name__ == "__main__":
    main()
