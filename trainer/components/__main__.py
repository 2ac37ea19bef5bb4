"""`python -m trainer.components`: answers requests about components until its input ends.

Users' code runs in forked processes, so that modules and random states of components do not meet, and so
that the files that one opens are its own. This process runs none, and relays answers unread.
"""

from __future__ import annotations

import os
import sys
import tempfile
from importlib import import_module
from typing import BinaryIO

from trainer.components.messages import Answer
from trainer.components.trial import Trial
from trainer.core.cgroup import measure
from trainer.core.forked import CallerEnded, Child, Ended
from trainer.core.frames import HEADER, length, message

CONTINUED = ("try", "digest")  # requests about the component that was opened
WITHOUT_OPTIMIZER = ("dataset", "partitioner", "augmentation", "lr_schedule")


def main() -> None:
    """Serve requests, in a directory without files: a relative path in users' code would fail in a node."""
    import torch

    torch.set_num_threads(1)  # a thread pool would not survive the fork
    sys.dont_write_bytecode = True
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what users' code prints is not an answer
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        _send(answers, b'{"ready": true}')
        child: Child | None = None
        while header := requests.read(HEADER):
            body = requests.read(length(header))
            request = message(body)  # of who started this process
            if child is None or request["do"] not in CONTINUED:
                if child:
                    child.close()
                if request["do"] != "find" and request["kind"] not in WITHOUT_OPTIMIZER:
                    import_module("torch._dynamo")  # as the first optimizer of a process does, for a second
                child = Child(Trial().answer)
            _send(answers, _answer(child, body, request["limit_s"]))


def _send(answers: BinaryIO, body: bytes) -> None:
    answers.write(len(body).to_bytes(HEADER, "big") + body)
    answers.flush()


def _answer(child: Child, body: bytes, limit_s: float) -> bytes:
    killed_before = measure().out_of_memory
    try:
        return child.ask(body, limit_s, caller=sys.stdin.fileno())
    except CallerEnded:
        sys.exit(1)
    except Ended as error:
        reason = str(error)
        if measure().out_of_memory > killed_before:
            reason = "needed more memory than a node of the run has, and was killed"
        return Answer(ended=reason).model_dump_json().encode()


if __name__ == "__main__":
    main()
