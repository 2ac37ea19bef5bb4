"""Attacks by a component on the process that loads the sweep: what it answers, prints and leaves.

The promise: the process that tries users' components is not trusted. Nothing that it sends makes the
orchestrator read or write a file outside of the component's directory, print a control character, use
memory or time without limit, or leave anything behind.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.sandbox.base import Sandbox
from orchestrator.sweeps import imports as module
from orchestrator.sweeps.imports import ComponentError, Imports, Inspection, MakeSandbox, local_sandbox
from orchestrator.sweeps.staged_code import PREFIX
from tests.support.command_line import environment, orchestrator, run_cli
from tests.support.containers import leftovers
from tests.support.processes import wait_until
from trainer.component_trials.messages import TrialAnswer
from trainer.core.frames import frame

MODEL = {"model": "./mine.py:Net", "strategy": "serial"}
HONEST = """
import math
from torch import nn
class Net(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), classes), nn.LogSoftmax(1))
"""
# Replaces the answer to be sent by one with these fields changed.
FORGE = """
import json
import trainer.component_trials.inspect as inspection
honest = inspection.checked
class Forged:
    def __init__(self, *given): self.answer = honest(*given)
    def model_dump_json(self):
        return json.dumps({**json.loads(self.answer.model_dump_json()), **CHANGED})
inspection.checked = Forged
"""
FACTS = {"blocks": ["0"], "indivisible": None, "code": "", "folder": "", "module": "", "attribute": ""}


def component(directory: Path, code: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "mine.py").write_text(code + HONEST)
    return directory


class Scripted(Sandbox):
    """A process that sends prepared bytes, again and again the last ones, and then nothing."""

    def __init__(self, *sent: bytes, endless: bool = False) -> None:
        super().__init__()
        self._sent, self._endless = [frame({"ready": True}), *sent], endless
        self.closed = False

    def open(self) -> None:
        pass

    def read(self, count: int, timeout_s: float) -> bytes:
        if not self._sent:
            time.sleep(timeout_s)
            raise TimeoutError
        data = self._sent[0][:count]
        self._sent[0] = self._sent[0][count:]
        if not self._sent[0]:
            last = self._sent.pop(0)
            if self._endless and not self._sent:
                self._sent.append(last or b"x" * count)
        return data

    def write(self, data: bytes, timeout_s: float) -> None:
        pass

    def ending(self) -> str:
        return "ended"

    def close(self) -> None:
        self.closed = True


def outcome(directory: Path, sandbox: Sandbox) -> str:
    """Why the component is refused; fails if it is not, or if the process stays."""
    imports = Imports(directory, make_sandbox=lambda _: sandbox)
    with pytest.raises(ComponentError) as raised:
        imports.resolve(MODEL)
    lines = "\n".join(raised.value.lines(str))
    assert lines.isprintable()
    return lines


def secret(directory: Path) -> Path:
    path = directory / "secret"
    path.write_text("secret")
    return path


# Answers


NOT_BELOW = [
    *("/etc/hostname", "../secret", "a/../../secret", "", ".", "mine.py/", "./mine.py", "nul\0"),
    *("escape\x1b[2J", "half \ud800"),
]


@pytest.mark.parametrize("name", NOT_BELOW)
def test_an_answer_names_files_below_the_directory_alone(name: str) -> None:
    assert TrialAnswer(files=["mine.py", "folder/mine.py"]).files
    with pytest.raises(ValidationError):
        TrialAnswer(files=["mine.py", name])


@pytest.mark.parametrize(
    "name",
    [*NOT_BELOW, "link", "folder/link", "linked/secret", "pipe", "folder", "gone", "mine.py/x"],
)
def test_a_file_outside_or_no_regular_file_is_never_opened(name: str, tmp_path: Path) -> None:
    outside, home = secret(tmp_path), component(tmp_path / "home", "")
    (home / "folder").mkdir()
    (home / "link").symlink_to(outside)
    (home / "folder" / "link").symlink_to("/etc/hostname")
    (home / "linked").symlink_to(tmp_path)
    os.mkfifo(home / "pipe")
    before = {path.name for path in tmp_path.iterdir()}
    answer = {"facts": FACTS, "files": ["mine.py", name]}
    imports = Imports(home, make_sandbox=lambda _: Scripted(frame(answer)))
    with pytest.raises(ComponentError):
        imports.resolve(MODEL)
    assert imports.code is not None
    copied = [path.read_text() for path in imports.code.rglob("*") if path.is_file()]
    assert [text for text in copied if text == "secret"] == []
    assert {path.name for path in tmp_path.iterdir()} == before
    assert outside.read_text() == "secret"


@pytest.mark.parametrize(
    "changed",
    [
        {"files": "mine.py"},
        {"files": ["mine.py"] * 20_000},
        {"files": ["mine.py", "mine.py"]},
        {"module": "../../x"},
        {"samples": "not base64"},
        {"error": 3},
        {"error": "x" * 10_000},
        {"invalid": [{}]},
        {"invalid": [{"type": "value_error", "loc": [], "msg": "\x1b[2J"}]},
        {"invalid": [{"type": "missing", "loc": [], "msg": ""}], "allowed": ["\x1b]0;title\x07"]},
        {"unknown": 1},
        {"facts": {}},
        {"facts": {**FACTS, "blocks": ["\x1b]0;title\x07"]}},
        {"facts": {**FACTS, "blocks": ["x"] * 20_000}},
        {"facts": {**FACTS, "blocks": [[[[[[[[[[[[[[[[[["deep"]]]]]]]]]]]]]]]]]]}},
        {"facts": {**FACTS, "unknown": 1}},
        {"facts": 3},
    ],
    ids=str,
)
def test_an_answer_that_does_not_fit_is_one_line(changed: dict[str, Any], tmp_path: Path) -> None:
    answer = {"facts": FACTS, "files": ["mine.py"], **changed}
    assert len(outcome(component(tmp_path, ""), Scripted(frame(answer)))) < 5000


@pytest.mark.parametrize(
    "declared",
    [{"__init__": 1}, {"model_config": {}}, {"transports": "gloo"}, {"max_nodes": "many"}, {"trains": 7}],
    ids=str,
)
def test_a_strategy_declares_nothing_but_what_strategies_do(declared: dict[str, Any]) -> None:
    from trainer.strategies.ddp import Ddp
    from trainer.user_components.strategy import DECLARED, StrategyFacts

    lists = {"replica_of": [0], "reports_samples": [True], "sees_inputs": [True]}
    source = {"code": "", "folder": "", "module": "mine.py", "attribute": "Net"}
    fields = {"replicas": 1, "updates_use_global_batch": True, "micro_batch_count": 1}
    rest = {"not_checkpointed": None, "bubble": None}
    honest = {name: getattr(Ddp, name) for name in DECLARED}
    assert StrategyFacts(**source, **fields, **rest, **lists, declared=honest)
    with pytest.raises(ValueError, match="declared"):
        StrategyFacts(**source, **fields, **rest, **lists, declared={**honest, **declared})


@pytest.mark.parametrize(
    ("sent", "endless"),
    [
        (b"\xff\xff\xff\xff", False),
        (b"\x00\x00\x00\x05[1,2]", False),
        (b"\x00\x00\x00\x03{{{", False),
        (b"\x00\x10\x00\x00" + b"[" * 2**20, False),
        (b"\x00\x00\x00", False),
        (b"", False),
        (b"\x00\x00\x00\x10 ", True),
    ],
    ids=["long", "list", "no-json", "nested", "half", "silent", "endless"],
)
def test_a_stream_without_an_answer_ends_in_time(
    sent: bytes, endless: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 1.0)
    sandbox = Scripted(*[sent] if sent else [], endless=endless)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert outcome(component(tmp_path, ""), sandbox)
    assert sandbox.closed
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024  # KiB


# Processes and containers


def docker_sandbox(inspection: Inspection) -> Sandbox:
    return DockerRuntime().inspection_sandbox(inspection)


SANDBOXES = [
    pytest.param(local_sandbox, id="local"),
    pytest.param(docker_sandbox, id="docker", marks=pytest.mark.containers),
]


@pytest.fixture
def tried(tmp_path: Path) -> Callable[[str, MakeSandbox], str]:
    """Why a component with this code is refused."""

    def refused(code: str, make: MakeSandbox) -> str:
        tmp_path.chmod(0o755)
        imports = Imports(component(tmp_path / "home", code), tmp_path / "data", make)
        (tmp_path / "home").chmod(0o755)
        (tmp_path / "home" / "mine.py").chmod(0o666)
        try:
            with pytest.raises(ComponentError) as raised:
                imports.resolve(MODEL)
        finally:
            imports.close()
        return "\n".join(raised.value.lines(str))

    return refused


@pytest.mark.parametrize("make", SANDBOXES)
def test_a_forged_answer_reads_no_file_of_the_machine(
    make: MakeSandbox, tried: Callable[[str, MakeSandbox], str], tmp_path: Path
) -> None:
    outside = secret(tmp_path)
    for name in (str(outside), "../secret"):
        reason = tried(FORGE.replace("CHANGED", repr({"files": ["mine.py", name]})), make)
        assert "files" in reason
    assert outside.read_text() == "secret"


@pytest.mark.parametrize("make", SANDBOXES)
def test_a_component_that_stops_its_parent_is_ended(
    make: MakeSandbox,
    tried: Callable[[str, MakeSandbox], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 8.0)
    stops = "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(600)\n"
    assert "8 s" in tried(stops, make)


@pytest.mark.parametrize("make", SANDBOXES)
def test_what_it_prints_reaches_no_terminal_and_takes_no_memory(
    make: MakeSandbox,
    tried: Callable[[str, MakeSandbox], str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 8.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    floods = "import os\nos.write(2, b'\\x1b]0;title\\x07')\nwhile True:\n    os.write(2, b'x' * 65536)\n"
    reason = tried(floods, make)
    assert reason.isprintable()
    assert len(reason) < 3000
    assert "\x1b" not in "".join(capfd.readouterr())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


@pytest.mark.containers
@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("x = bytearray(3 * 2**30)\nfor i in range(0, len(x), 4096): x[i] = 1\n", "more memory"),
        ("open(__file__, 'a')\n", "Read-only"),
        ("with open('/tmp/full', 'wb') as f:\n    for _ in range(600): f.write(bytes(2**20))\n", "space"),
        ("import socket\nsocket.create_connection(('8.8.8.8', 53), 2)\n", "unreachable"),
    ],
    ids=["memory", "code", "disk", "network"],
)
def test_it_has_the_limits_of_a_node(
    code: str, named: str, tried: Callable[[str, MakeSandbox], str]
) -> None:
    assert named in tried(code, docker_sandbox)


@pytest.mark.containers
def test_a_file_that_only_its_user_can_read_stays_on_the_machine(
    tried: Callable[[str, MakeSandbox], str], tmp_path: Path
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "key").write_text("secret")
    (tmp_path / "home" / "key").chmod(0o600)
    forged = FORGE.replace("CHANGED", repr({"files": ["mine.py", "key"]}))
    assert "not readable" in tried(forged, docker_sandbox)


# What is left


def written_sweep(directory: Path, code: str) -> Path:
    component(directory, code)
    file = directory / "sweep.yml"
    file.write_text(
        json.dumps({"name": "s", "blocks": [{"base": {**MODEL, "dataset": "digits", "epochs": 1}}]})
    )
    return file


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("runtime", ["local", pytest.param("docker", marks=pytest.mark.containers)])
def test_a_signal_while_a_component_is_tried_leaves_nothing(
    runtime: str, number: signal.Signals, tmp_path: Path
) -> None:
    home, temporary = tmp_path / "home", tmp_path / "temporary"
    temporary.mkdir()
    hangs = "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(600)\n"
    file = written_sweep(home, hangs)
    tmp_path.chmod(0o755)
    before = set(leftovers("shardyard.orchestrator")) if runtime == "docker" else set()
    process = subprocess.Popen(
        orchestrator("sweep", file, "--dry-run", "--runtime", runtime),
        env={**environment(), "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in (2, 1, 15)],
    )
    wait_until(lambda: any(temporary.glob(f"{PREFIX}*")), 60)
    time.sleep(3)  # at some moment of the trial
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert [path.name for path in temporary.iterdir() if path.name.startswith(PREFIX)] == []
    if runtime == "docker":
        assert set(leftovers("shardyard.orchestrator")) <= before
    else:
        assert not _processes_in(temporary)


@pytest.mark.containers
def test_a_killed_orchestrator_leaves_no_container(tmp_path: Path) -> None:
    hangs = "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(600)\n"
    file = written_sweep(tmp_path / "home", hangs)
    tmp_path.chmod(0o755)
    before = set(leftovers("shardyard.orchestrator"))
    command = orchestrator("sweep", file, "--dry-run", "--runtime", "docker")
    with subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: not set(leftovers("shardyard.orchestrator")) <= before, 60)
        process.kill()
    wait_until(lambda: set(leftovers("shardyard.orchestrator")) <= before, 60)


@pytest.mark.skipif(os.getuid() != 0, reason="takes another user, which only root can")
def test_other_users_read_no_copy_of_a_private_file(tmp_path: Path) -> None:
    home = component(tmp_path / "home", "")
    (home / "mine.py").chmod(0o600)
    tmp_path.chmod(0o755)
    home.chmod(0o700)
    answers = frame({"facts": FACTS, "files": ["mine.py"]}), frame({})  # the second one: that it fits
    imports = Imports(home, make_sandbox=lambda _: Scripted(*answers))
    imports.resolve(MODEL)
    assert imports.code is not None
    (copy,) = imports.code.rglob("mine.py")
    done = subprocess.run(
        [sys.executable, "-c", f"import os; os.setuid(65534); open({str(copy)!r})"], capture_output=True
    )
    assert b"PermissionError" in done.stderr


def test_a_sweep_keeps_the_copies_of_code_and_its_runs_private(tmp_path: Path) -> None:
    file, out = written_sweep(tmp_path / "home", ""), tmp_path / "out"
    done = run_cli("sweep", file, "--out", out, timeout_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    private = [path for path in out.iterdir() if path.is_dir() and path.name != "plots"]
    assert {path.stat().st_mode & 0o777 for path in private} == {0o700}


def _processes_in(directory: Path) -> list[int]:
    """Processes whose command or environment names it."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if str(directory) in " ".join(process.environ().values()) and process.pid != os.getpid():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


# What an error says


FORGED = "bad\\n[3/3] x: ok\\r[4/4] y: ok\\u2028[5/5] z: ok\\x1b[2J"
FAILURE = "from trainer.user_components.source import ImportFailure\nraise ImportFailure({!r})\n"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (f'raise ValueError("{FORGED}")', "bad"),
        (FAILURE.format("bad\n[3/3] x: ok"), "bad"),
        ("raise ValueError('\\x1b' * 5000 + 'the reason')", "the reason"),
        ("raise ValueError('\\x1b' * 50 + 'x ' * 5000 + 'the reason')", "the reason"),
        (FAILURE.format("\x1b" * 5000 + "the reason"), "the reason"),
        ("open('odd \\x1b[2J\\n', 'w').close()", "control characters"),
        ("open('two\\n[3] x: ok', 'w').close()", "control characters"),
    ],
)
def test_an_error_is_one_line_that_keeps_its_reason(
    code: str, says: str, tried: Callable[[str, MakeSandbox], str]
) -> None:
    in_directory = f"import os\nos.chdir(os.path.dirname(__file__))\n{code}\n"
    reason = tried(in_directory, local_sandbox)
    assert reason.isprintable()
    assert says in reason
    assert "pydantic" not in reason
    assert len(reason) < 5000


@pytest.mark.parametrize("name", ["a\x1b[2J.py", "a\n[3/3] x: ok.py", "a\t.py", "in\n/mine.py", "link.py"])
def test_a_file_whose_name_has_control_characters_is_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    if name == "link.py":
        (tmp_path / "a\x1b.py").write_text(HONEST)
        (tmp_path / name).symlink_to("a\x1b.py")
    else:
        (tmp_path / name).write_text(HONEST)
    with pytest.raises(ComponentError) as raised:
        Imports(tmp_path).resolve({"model": f"./{name}:Net", "strategy": "serial"})
    reason = "\n".join(raised.value.lines(str))
    assert reason.isprintable()
    assert "control characters" in reason
