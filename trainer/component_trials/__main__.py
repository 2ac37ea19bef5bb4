"""`python -m trainer.component_trials`: answers requests until its input ends.

Each request is served by a forked process, so that users' modules and random states do not meet, and so
that the files that a component opens are its own.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from typing import BinaryIO

from trainer.component_trials.inspect import inspect
from trainer.component_trials.messages import TrialAnswer, TrialRequest
from trainer.core.cgroup import measure
from trainer.core.forked import CallerEnded, Ended, forked
from trainer.core.frames import HEADER, frame, length, message


def main() -> None:
    """Serve requests, in a directory without files: a relative path in users' code would fail in a node."""
    import torch
    import torch._dynamo  # the first optimizer of a process does so, and each request has a process

    torch.set_num_threads(1)  # a thread pool would not survive the fork
    sys.dont_write_bytecode = True
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what users' code prints is not an answer
    with tempfile.TemporaryDirectory() as empty:
        os.chdir(empty)
        sys.pycache_prefix = empty  # so that imports open sources, and the files that they need are known
        _send(answers, {"ready": True})
        while header := requests.read(HEADER):
            request = TrialRequest.model_validate(message(requests.read(length(header))))
            _send(answers, _served(request))


def _send(answers: BinaryIO, answer: dict[str, object]) -> None:
    answers.write(frame(answer))
    answers.flush()


def _served(request: TrialRequest) -> dict[str, object]:
    """The answer to a request. The orchestrator checks it; here it stays what users' code makes of it."""
    killed_before = measure().out_of_memory
    try:
        (answer,) = forked(lambda send: send(inspect(request).model_dump_json()), caller=sys.stdin.fileno())
    except CallerEnded:
        sys.exit(1)
    except Ended as error:
        reason = f"the process that tried it {error}"
        if measure().out_of_memory > killed_before:
            reason = "it needed more memory than a node of the run has, and was killed"
        return TrialAnswer(error=reason).model_dump()
    found: dict[str, object] = json.loads(answer)
    return found


if __name__ == "__main__":
    main()
