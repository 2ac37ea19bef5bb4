"""Attacks by a component on commands that try it: what it answers, prints, leaves, and where it runs."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.commands import model as model_command
from orchestrator.commands import partitions as partitions_command
from orchestrator.errors import InputError
from orchestrator.identity import labelled
from orchestrator.runtimes.docker.reaper import LABEL
from orchestrator.runtimes.docker.runtime import DockerRuntime
from orchestrator.sandbox.base import Program, Sandbox
from orchestrator.sweeps import imports as module
from orchestrator.sweeps import trials
from orchestrator.sweeps.imports import ComponentError, Imports
from orchestrator.sweeps.staged_code import PREFIX
from orchestrator.sweeps.trials import MakeSandbox, local_sandbox
from tests.attacks.conftest import Scripted
from tests.support.command_line import environment, heed_signals, orchestrator
from tests.support.containers import leftovers
from tests.support.processes import wait_until
from trainer.core.frames import frame
from trainer.models.mlp import Mlp
from trainer.spec.run_spec import RunSpec

HONEST = """
import math
from torch import nn
class Net(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), classes), nn.LogSoftmax(1))
"""
# Replaces the answer to be sent by one that names another file.
FORGES = """
import json
import trainer.components.trial as inspection
honest = inspection.checked
class Forged:
    def __init__(self, *given): self.answer = honest(*given)
    def model_dump_json(self, **options):
        return json.dumps({**json.loads(self.answer.model_dump_json()), "files": [NAME]})
inspection.checked = Forged
"""
HANGS = "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(600)\n"
FLOODS = "import os\nos.write(2, b'\\x1b]0;title\\x07')\nwhile True:\n    os.write(2, b'x' * 65536)\n"
FACTS = {"names": ["0"], "indivisible": None, "code": "", "folder": "", "module": "", "attribute": ""}


def component(directory: Path, code: str = "", name: str = "mine.py") -> Path:
    file = directory / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code + HONEST)
    return directory


def answered(directory: Path, *answers: dict[str, Any] | bytes) -> Imports:
    """The process that tries components in the directory sends these answers."""
    sent = [each if isinstance(each, bytes) else frame(each) for each in answers]
    return Imports(component(directory), make_sandbox=lambda _: Scripted(*sent))


def model(imports: Imports, name: str = "mine.py") -> dict[str, Any]:
    return imports.resolve({"model": f"./{name}:Net", "strategy": "serial"})


def refused(imports: Imports, name: str = "mine.py") -> str:
    """Why the component is refused."""
    with pytest.raises(ComponentError) as raised:
        model(imports, name)
    reason = "\n".join(raised.value.lines(str))
    assert reason.isprintable()
    assert len(reason) < 5000
    return reason


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("secret")
    return path


NAMES = ["/etc/hostname", "../secret", "a/../../secret", "", ".", "mine.py/", "./mine.py", "nul\0"]
NAMES += ["escape\x1b[2J", "half \ud800", "link", "folder/link", "linked/secret", "pipe", "folder", "gone"]


def test_a_file_outside_or_no_regular_file_is_never_opened(tmp_path: Path, secret: Path) -> None:
    home = component(tmp_path / "home")
    (home / "folder").mkdir()
    (home / "link").symlink_to(secret)
    (home / "folder" / "link").symlink_to("/etc/hostname")
    (home / "linked").symlink_to(tmp_path)
    os.mkfifo(home / "pipe")
    for name in NAMES:
        imports = answered(home, {"facts": FACTS, "files": ["mine.py", name]}, {})
        refused(imports)
        assert imports.code is not None
        copied = [path.read_text() for path in imports.code.rglob("*") if path.is_file()]
        assert {*copied} <= {HONEST}, name
        assert imports.code.parent.stat().st_mode & 0o777 == 0o700  # also for other users
    assert {path.name for path in tmp_path.iterdir()} == {"home", "secret"}
    assert secret.read_text() == "secret"


ANSWERS: list[dict[str, Any]] = [
    {"files": "mine.py"},
    {"files": ["mine.py"] * 20_000},
    {"files": ["mine.py", "mine.py"]},
    {"module": "../../x"},
    {"samples": "not base64"},
    {"error": "x" * 10_000},
    {"invalid": [{}]},
    {"invalid": [{"type": "value_error", "loc": [], "msg": "\x1b[2J"}]},
    {"invalid": [{"type": "missing", "loc": [], "msg": ""}], "allowed": ["\x1b]0;title\x07"]},
    {"unknown": 1},
    {"facts": {}},
    {"facts": {**FACTS, "names": ["\x1b]0;title\x07"]}},
    {"facts": {**FACTS, "names": ["x"] * 20_000}},
    {"facts": {**FACTS, "unknown": 1}},
]


def test_an_answer_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    honest = {"facts": FACTS, "files": ["mine.py"]}
    assert model(answered(tmp_path, honest, {}))  # {}: model and data fit together
    for changed in ANSWERS:
        assert refused(answered(tmp_path, {**honest, **changed}, {})), changed


def test_a_stream_without_an_answer_ends_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.3)
    monkeypatch.setattr(trials, "MORE_S", 0.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    too_long, nested, half = b"\xff" * 4, b"\0\x10\0\0" + b"[" * 2**20, b"\0\0\0"
    for sent in (too_long, b"\0\0\0\x05[1,2]", nested, half, b""):
        imports = answered(tmp_path, sent)
        assert refused(imports)
        assert imports.trials._channel is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024  # KiB


BLOCK = {"name": "layer", "parameters": 1, "largest_tensor": 1, "output_shape": [1], "flops": 1.0}
BLOCK |= {"output_bytes": 1.0, "saved_bytes": 1.0, "forward_s": 1.0, "backward_s": 1.0}
PROFILES: list[dict[str, Any]] = [{"name": "other"}, {"name": "\x1b[2J"}, {"forward_s": 0.0}]
PROFILES += [{"forward_s": float("nan")}, {"flops": 1e300}, {"output_shape": [1] * 1000}]
PARTITION = {"labels": [[1, 1]] * 2, "coverage": 1.0, "overlap": 0.0}
PARTITION |= {"js_divergence": [0.0] * 2, "earth_movers_distance": [0.0] * 2}
PARTITIONS: list[dict[str, Any]] = [{"labels": [[1, 1]]}, {"labels": [[1, 1], [1]]}, {"js_divergence": []}]
PARTITIONS += [{"labels": [[1, "x"], [1, 1]]}, {"earth_movers_distance": [0.0, float("inf")]}]


def test_figures_that_are_none_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (model_command, partitions_command):
        monkeypatch.setattr(command, "has_users", lambda run: True)
    monkeypatch.setattr(Mlp, "names", ["layer"])
    run = RunSpec(model="mlp", strategy="serial")
    assert model_command.profile_blocks(run, answered(tmp_path, {"blocks": [BLOCK]}))
    for blocks in ([], *([{**BLOCK, **changed}] for changed in PROFILES)):
        with pytest.raises(InputError) as raised:
            model_command.profile_blocks(run, answered(tmp_path, {"blocks": blocks}))
        assert str(raised.value).isprintable()

    def partition(answer: dict[str, Any]) -> Any:
        imports = answered(tmp_path, answer)
        dataset = "{name: synthetic, samples: 200, classes: 2, height: 3, width: 3}"
        runs = partitions_command.runs_of(dataset, 2, ["shards"], 0, imports)
        return next(partitions_command.preview(runs, tmp_path, imports))

    assert partition({"partition": PARTITION}).summary
    for answer in ({}, *({"partition": {**PARTITION, **changed}} for changed in PARTITIONS)):
        assert partition(answer).summary is None, answer
        assert partition(answer).reason.isprintable()


def docker_sandbox(program: Program) -> Sandbox:
    return DockerRuntime().sandbox(program)


Tried = Callable[..., Iterator[str]]


@pytest.fixture
def tried(tmp_path: Path) -> Tried:
    """Why components with this code are refused, each tried in the same sandbox."""

    def reasons(make: MakeSandbox, *codes: str) -> Iterator[str]:
        tmp_path.chmod(0o755)
        home = tmp_path / "home"
        with closing(Imports(home, tmp_path / "data", make)) as imports:
            for number, code in enumerate(codes):
                component(home, code, name := f"mine{number}.py").chmod(0o755)
                (home / name).chmod(0o666)
                yield refused(imports, name)

    return reasons


# Notes each process that runs it. The model fails when it is profiled, after the trial that loads it.
FAILS = """
import math, os, traceback
from pathlib import Path
import numpy as np
from torch import nn
with open(Path(__file__).parent / "pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
class Flat(nn.Flatten):
    def __init__(self, fails):
        super().__init__()
        self.fails = fails
    def forward(self, x):
        if "profile_blocks" in str(traceback.extract_stack()):
            exec(self.fails)
        return super().forward(x)
class Fails(nn.Sequential):
    def __init__(self, shape, classes, fails=""):
        super().__init__(Flat(fails), nn.Linear(math.prod(shape), classes), nn.LogSoftmax(1))
def split(labels, parts):
    return np.array_split(np.arange(len(labels)), parts)
def data():
    return np.random.default_rng(0).standard_normal((60, 4)), np.arange(60) % 3
"""


def test_no_code_of_users_runs_in_commands_that_show_figures(tmp_path: Path) -> None:
    file = component(tmp_path, FAILS) / "mine.py"
    with closing(Imports(tmp_path, tmp_path)) as imports:

        def shown(fails: str = "", mesh: str | None = None) -> str:
            name = f"{{name: {file}:Fails, fails: {fails!r}}}"
            return "\n".join(model_command.sections(name, "digits", 8, None, 80, imports, mesh=mesh))

        assert "slowest" in shown()
        assert "split points" in shown(mesh="data=2,pipeline=2")
        for dataset in ("digits", f"{file}:data"):
            runs = partitions_command.runs_of(dataset, 4, [f"{file}:split"], 0, imports)
            assert next(partitions_command.preview(runs, Path("data"), imports)).summary
        for fails in ("os._exit(3)", "raise SystemExit(0)", "raise KeyError(chr(27) * 10**6 + chr(10))"):
            with pytest.raises(InputError) as raised:
                shown(fails)
            assert str(raised.value).isprintable()
            assert len(str(raised.value)) < 5000
    pids = {int(line) for line in (tmp_path / "pids").read_text().split()}
    assert len(pids) > 3
    assert os.getpid() not in pids


@pytest.mark.parametrize(
    "make",
    [local_sandbox, pytest.param(docker_sandbox, marks=[pytest.mark.containers, pytest.mark.nightly])],
    ids=["local", "docker"],
)
def test_what_forges_an_answer_hangs_or_floods_is_refused(
    make: MakeSandbox, tried: Tried, secret: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 4.0)
    monkeypatch.setattr(trials, "MORE_S", 8.0)  # also to import what optimizers need
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    forged, hung, flooded = tried(make, FORGES.replace("NAME", repr(str(secret))), HANGS, FLOODS)
    assert "files" in forged
    assert "12 s" in hung
    assert "4 s" in flooded
    assert secret.read_text() == "secret"
    assert "\x1b" not in "".join(capfd.readouterr())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * 1024  # KiB


CONFINED = {
    "x = bytearray(3 * 2**30)\nfor i in range(0, len(x), 4096): x[i] = 1\n": "more memory",
    "open(__file__, 'a')\n": "Read-only",
    "with open('/tmp/full', 'wb') as f:\n    for _ in range(600): f.write(bytes(2**20))\n": "space",
    "import socket\nsocket.create_connection(('8.8.8.8', 53), 2)\n": "unreachable",
    FORGES.replace("NAME", "'key'"): "not readable",  # by the user of the containers
}


@pytest.mark.containers
@pytest.mark.parametrize("code", CONFINED, ids=["memory", "code", "disk", "network", "private file"])
def test_it_has_the_limits_and_the_files_of_a_node(code: str, tried: Tried, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "key").touch(mode=0o600)
    (reason,) = tried(docker_sandbox, code)
    assert CONFINED[code] in reason


@pytest.mark.parametrize(
    ("runtime", "number"),
    [
        ("local", signal.SIGTERM),
        pytest.param("docker", signal.SIGTERM, marks=pytest.mark.containers),
        pytest.param("docker", signal.SIGKILL, marks=pytest.mark.containers),
    ],
)
def test_an_orchestrator_that_ends_while_a_component_is_tried_leaves_nothing(
    runtime: str, number: signal.Signals, tmp_path: Path
) -> None:
    temporary, home = tmp_path / "temporary", component(tmp_path / "home", HANGS)
    temporary.mkdir()
    tmp_path.chmod(0o755)
    base = {"model": "./mine.py:Net", "strategy": "serial", "dataset": "digits", "epochs": 1}
    (home / "sweep.yml").write_text(json.dumps({"name": "s", "blocks": [{"base": base}]}))
    before = set(leftovers(LABEL)) if runtime == "docker" else set()
    process = subprocess.Popen(
        orchestrator("sweep", home / "sweep.yml", "--dry-run", "--runtime", runtime),
        env={**environment(), "TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_signals,
    )
    wait_until(lambda: any(temporary.glob(f"{PREFIX}*")), 60)
    if runtime == "docker":
        wait_until(lambda: not set(leftovers(LABEL)) <= before, 60)
    time.sleep(3)  # at some moment of the trial
    process.send_signal(number)
    assert "Traceback" not in process.communicate(timeout=60)[1]
    if runtime == "docker":
        wait_until(lambda: set(leftovers(LABEL)) <= before, 60)
    if number == signal.SIGTERM:
        assert process.returncode == 130
        assert [*temporary.glob(f"{PREFIX}*")] == []
        assert not [each for each, found in labelled() if found.get("TMPDIR") == str(temporary)]


ERRORS = {
    'raise ValueError("bad\\n[3/3] x: ok\\r[4/4] y: ok\\u2028[5/5] z: ok\\x1b[2J")': "bad",
    "raise ValueError('\\x1b' * 50 + 'x ' * 5000 + 'the reason')": "the reason",
    "from trainer.core.user_code import ImportFailure\n"
    "raise ImportFailure('\\n' + '\\x1b' * 5000 + 'the reason')": "the reason",
    "open('odd \\x1b[2J\\n', 'w').close()": "control characters",
}


def test_an_error_is_one_line_that_keeps_its_reason(tried: Tried) -> None:
    codes = (f"import os\nos.chdir(os.path.dirname(__file__))\n{code}\n" for code in ERRORS)
    for reason, says in zip(tried(local_sandbox, *codes), ERRORS.values(), strict=True):
        assert says in reason
        assert "pydantic" not in reason


def test_a_file_whose_name_has_control_characters_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "link.py").symlink_to("a\x1b[2J.py")
    for name in ("a\x1b[2J.py", "a\n[3/3] x: ok.py", "a\t.py", "in\n/mine.py", "link.py"):
        component(tmp_path, name=name)
        assert "control characters" in refused(Imports(tmp_path), name)
