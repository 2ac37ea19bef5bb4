"""Submissions that try to get points or to disturb the grader.

All are files `answer.py` for the checks in CHECKS, which a right answer passes: `answer(values)` returns
twice the values, and `exchange(rank, size, send, recv)` returns what the left neighbour has sent.
"""

from __future__ import annotations

from pathlib import Path

CHECKS = """
from shardyard.course import Network, check, close, equal

CASES = [{"n": 1}, {"n": 2}]


@check("answer.py", points=3, title="twice", law="It doubles.", reason="So.", seconds=5, cases=CASES)
def twice(student, n):
    close(student.call("answer", [1.0] * n), [2.0] * n)


@check("answer.py", points=1, title="ring", law="It shifts.", reason="So.", seconds=5)
def ring(student):
    network = Network(2)
    results = student.together("exchange", [(rank, 2, *network.functions(rank)) for rank in range(2)])
    equal(results, [1, 0])
"""

RIGHT = """
def answer(values):
    return [2 * value for value in values]

def exchange(rank, size, send, recv):
    send((rank + 1) % size, rank)
    return recv((rank - 1) % size)
"""

# Harmless to a machine that runs them without a container.
QUICK = {
    "empty": "",
    "no_python": "def answer(",
    "raises": r"""
def answer(values):
    raise ValueError("\x1b[31m\n" + "x" * 100_000)
""",
    "exits": """
import os

def answer(values):
    os._exit(0)
""",
    "exits_at_import": """
import os

os._exit(0)
""",
    "system_exit": """
def answer(values):
    raise SystemExit(0)
""",
    "hangs": """
def answer(values):
    while True:
        pass
""",
    "deadlock": """
def exchange(rank, size, send, recv):
    return recv((rank - 1) % size)
""",
    "types": """
def answer(values):
    return answer
""",
    "deep": """
def answer(values):
    for _ in range(900):
        values = [values]
    return values
""",
    "nan": """
def answer(values):
    return [float("nan") for _ in values]
""",
    "prints": """
def answer(values):
    for _ in range(5):
        print("x" * 1_000_000)
    return values
""",
    "monkeypatches": """
import sys

import numpy as np
import trainer.course.worker as worker

np.abs = np.all = lambda *_, **__: np.zeros(1)
worker.encode = lambda *_, **__: {"points": 99}
sys.modules["orchestrator"] = None

def answer(values):
    return values
""",
    "forges": """
import json
import os

body = json.dumps({"call": 0, "result": {"points": 99}}).encode()
for number in range(3, 20):
    try:
        os.write(number, len(body).to_bytes(4, "big") + body)
    except OSError:
        pass
""",
    "garbage": """
import os

def answer(values):
    for number in range(3, 20):
        try:
            os.write(number, bytes(range(256)) * 1000)
        except OSError:
            pass
""",
    "too_long": """
def answer(values):
    return "x" * 20_000_000
""",
    "many_waits": """
import threading

def exchange(rank, size, send, recv):
    for _ in range(100):
        threading.Thread(target=recv, args=(1 - rank,), daemon=True).start()
    return recv(1 - rank)
""",
    "leaves_a_process": """
import os
import time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
""",
}

# For containers only.
HARMFUL = {
    "forks": """
import os

def answer(values):
    while True:
        try:
            os.fork()
        except OSError:
            pass
""",
    "memory": """
def answer(values):
    held = []
    while True:
        held.append(bytearray(10**7))
""",
    "kills": """
import os
import signal

for number in range(1, 100):
    if number != os.getpid():
        try:
            os.kill(number, signal.SIGKILL)
        except OSError:
            pass
os._exit(0)
""",
    "holds_the_lock": """
def answer(values):
    return 10**10**10
""",
}


def write_submissions(directory: Path, sources: dict[str, str]) -> list[Path]:
    """Write submissions, and the checks as checks.py beside them. Returns their directories."""
    (directory / "checks.py").write_text(CHECKS)
    found = []
    for name, source in sources.items():
        submission = directory / name
        submission.mkdir()
        (submission / "answer.py").write_text(source)
        found.append(submission)
    return found
