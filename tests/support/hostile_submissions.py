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


def answer(*lines: str) -> str:
    """A function with these lines."""
    return "\n    ".join(["def answer(values):", *lines]) + "\n"


def exchange(*lines: str) -> str:
    return "\n    ".join(["def exchange(rank, size, send, recv):", *lines]) + "\n"


RIGHT = answer("return [2 * value for value in values]") + exchange(
    "send((rank + 1) % size, rank)", "return recv((rank - 1) % size)"
)
TO_ALL = """
import contextlib, json, os
body = json.dumps({"call": 0, "result": {"points": 99}}).encode()
forged = len(body).to_bytes(4, "big") + body
def write(data):
    for number in range(3, 20):
        with contextlib.suppress(OSError):
            os.write(number, data)

"""

# Harmless to a machine that runs them without a container.
QUICK = {
    "empty": "",
    "no_python": "def answer(",
    "raises": answer(r'raise ValueError("\x1b[31m\n" + "x" * 100_000)'),
    "exits": answer("import os", "os._exit(0)"),
    "exits_at_import": "import os\nos._exit(0)\n",
    "system_exit": answer("raise SystemExit(0)"),
    "hangs": answer("while True:", "    pass"),
    "deadlock": exchange("return recv((rank - 1) % size)"),
    "types": answer("return answer"),
    "deep": answer("for _ in range(900):", "    values = [values]", "return values"),
    "nan": answer('return [float("nan") for _ in values]'),
    "prints": answer("for _ in range(5):", '    print("x" * 1_000_000)', "return values"),
    "monkeypatches": """
import sys, numpy as np, trainer.course.worker as worker
np.abs = np.all = lambda *_, **__: np.zeros(1)
worker.encode = lambda *_, **__: {"points": 99}
sys.modules["orchestrator"] = None

"""
    + answer("return values"),
    "forges": f"{TO_ALL}\nwrite(forged)\n",
    "fakes_a_score": """
import contextlib, json, os
fake = json.dumps({"score": 4, "tests": [{"score": 4, "max_score": 4, "status": "passed"}]})
print(fake, flush=True)
for place in (os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))):
    with contextlib.suppress(OSError), open(os.path.join(place, "results.json"), "x") as file:
        file.write(fake)
os._exit(0)
""",
    "walks_the_stack": """
import gc, sys
def found():
    frames = [*sys._current_frames().values()]
    for frame in frames:
        frames += [frame.f_back] if frame.f_back else []
    names = [{**frame.f_globals, **frame.f_locals}.get("expected") for frame in frames]
    return [*filter(None, names), *(each for each in gc.get_objects() if type(each).__name__ == "Check")]

"""
    + answer("return found() or values")
    + exchange("return found() or rank"),
    "garbage": TO_ALL + answer("write(bytes(range(256)) * 1000)"),
    "too_long": answer('return "x" * 20_000_000'),
    "many_waits": "import threading\n"
    + exchange(
        "for _ in range(100):",
        "    threading.Thread(target=recv, args=(1 - rank,), daemon=True).start()",
        "return recv(1 - rank)",
    ),
    "leaves_a_process": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
""",
}

# For containers only.
HARMFUL = {
    "forks": "import contextlib, os\n"
    + answer("while True:", "    with contextlib.suppress(OSError):", "        os.fork()"),
    "memory": answer("held = []", "while True:", "    held.append(bytearray(10**7))"),
    "kills": """
import contextlib, os, signal
for number in {*range(1, 100)} - {os.getpid()}:
    with contextlib.suppress(OSError):
        os.kill(number, signal.SIGKILL)
os._exit(0)
""",
    "holds_the_lock": answer("return 10**10**10"),
}


def write_submissions(directory: Path, sources: dict[str, str]) -> list[Path]:
    """Write submissions, and the checks as checks.py beside them. Returns their directories."""
    (directory / "checks.py").write_text(CHECKS)
    for name, source in sources.items():
        (directory / name).mkdir()
        (directory / name / "answer.py").write_text(source)
    return [directory / name for name in sources]
