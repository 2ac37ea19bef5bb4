"""Mistakes in stored checkpoints: what survives a crash, what is refused, what a row says about them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from trainer.spec.registries import COMPRESSIONS, STRATEGIES
from trainer.spec.run_spec import RunSpec
from trainer.training import checkpoint_store as module
from trainer.training.checkpoint_store import CheckpointError, CheckpointStore, Position

AT, LATER = Position(2, 13), Position(3, 0)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints", "run-key", 0, 2)


@pytest.fixture
def file(store: CheckpointStore) -> Path:
    """The only checkpoint of the store."""
    store.write(AT, state())
    (file,) = store.directory.glob("*/*")
    return file


def state(number: float = 1.0) -> dict[str, Any]:
    return {"weights": torch.full((3, 2), number), "steps": 5, "loss": None}


def test_a_crash_keeps_earlier_checkpoints(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is synced before it is renamed, and its directory afterwards."""
    done: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real, name=name: (done.append(name), real(*a)))
    written = store.write(AT, state(0.1))
    assert done == ["fsync", "replace", "fsync"]

    def crash(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", crash)
        for position in (AT, LATER):
            with pytest.raises(KeyboardInterrupt):
                store.write(position, state(2))
    assert store.positions() == [AT]
    read, taken = store.read(AT)
    assert torch.equal(read["weights"], state(0.1)["weights"])
    assert (read["steps"], read["loss"]) == (5, None)
    at = (store.directory / "epoch-00002-step-0000013" / "rank-0.pt").stat()
    assert at.st_size == written
    assert abs(taken - at.st_mtime) < 5
    store.write(LATER, state(3))  # overwrites the temporary file of the crash
    assert store.positions() == [LATER, AT]


def test_directories_inherit_the_mode_of_their_parent(tmp_path: Path) -> None:
    """Local checkpoints stay private; `make_world_writable` opens the mounted directory to containers."""
    for mode in (0o700, 0o777):
        parent = tmp_path / oct(mode)
        parent.mkdir()
        parent.chmod(mode)
        store = CheckpointStore(parent / "checkpoints", "run-key", 0, 2)
        store.open()
        store.write(AT, state())
        made = [path.stat().st_mode & 0o777 for path in parent.rglob("*") if path.is_dir()]
        assert made == [mode, mode]


def test_symbolic_links_are_not_followed(store: CheckpointStore, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("another's")
    for target, act in (
        ("epoch-00002-step-0000013/rank-0.tmp", lambda: store.write(AT, state())),
        ("resumed", store.record_resumption),
    ):
        link = store.directory / target
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(victim)
        with pytest.raises(CheckpointError, match="Too many levels of symbolic links"):
            act()
    assert victim.read_text() == "another's"


def test_what_is_no_file_is_no_checkpoint(store: CheckpointStore, file: Path) -> None:
    file.rename(file.with_name("moved"))
    with pytest.raises(CheckpointError, match="cannot be read: No such file"):
        store.read(AT)
    for kind, make in (("pipe", os.mkfifo), ("link", lambda path: path.symlink_to("moved"))):
        make(file)
        assert store.positions() == [AT]
        with pytest.raises(CheckpointError, match=f"cannot be read: is a .*{kind}"):
            store.read(AT)
        file.unlink()


def test_damage_is_detected(store: CheckpointStore, file: Path) -> None:
    """A file cut off anywhere, or with a flipped bit; and no pickled code is executed."""
    whole = file.read_bytes()
    damaged = [whole[:length] for length in (0, 1, 50, len(whole) - 1)]
    flipped = range(whole.index(b"\n"), len(whole), 97)
    damaged += [whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :] for at in flipped]
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged"):
            store.read(AT)
    store.write(AT, {"loss": CheckpointError("an object of any class")})
    with pytest.raises(CheckpointError, match="UnpicklingError"):
        store.read(AT)


def test_checkpoint_of_another_run_rank_or_version_is_rejected(
    store: CheckpointStore, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(run: str = "run-key", rank: int = 0, ranks: int = 2) -> str:
        file.with_name(f"rank-{rank}.pt").write_bytes(file.read_bytes())
        with pytest.raises(CheckpointError) as caught:
            CheckpointStore(store.directory, run, rank, ranks).read(AT)
        return str(caught.value)

    assert refused(run="another") == "its run is run-key, not another"
    assert refused(ranks=3) == "its ranks is 2, not 3"
    assert refused(rank=1) == "its rank is 0, not 1"
    monkeypatch.setattr(module, "source_digest", lambda: "0123456789abcdef")
    assert refused().endswith("these are 0123456789abcdef")
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert refused().endswith("this is torch 9.9")
    file.parent.rename(store.directory / "epoch-00003-step-0000000")
    with pytest.raises(CheckpointError, match=r"its position is \[2, 13\], not \[3, 0\]"):
        store.read(LATER)


def test_source_digest_changes_with_any_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOURCES", tmp_path)
    found = [module.source_digest.__wrapped__()]
    for name, text in [("a.py", "1"), ("a.py", "2"), ("below/b.py", "2"), ("c.py", ""), ("notes.txt", "")]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        found.append(module.source_digest.__wrapped__())
    assert len({*found}) == 5
    assert found[-1] == found[-2]


def test_prune_keeps_the_last_two(store: CheckpointStore) -> None:
    """Of this rank; without a position it removes all, and the count of resumptions."""
    other = CheckpointStore(store.directory, "run-key", 1, 2)
    for steps in range(5):
        store.write(Position(1, steps), state())
    other.write(Position(1, 0), state())
    store.prune(Position(1, 3))
    assert store.positions() == [Position(1, 3), Position(1, 2)]
    assert other.positions() == [Position(1, 0)]
    assert sorted(path.name[-1] for path in store.directory.iterdir()) == ["0", "2", "3"]
    assert [store.record_resumption() for _ in range(2)] == [1, 2]
    store.prune(None)
    assert (store.positions(), other.positions()) == ([], [Position(1, 0)])
    assert store.record_resumption() == 1


# Which runs may set an interval


def refusal(**fields: Any) -> str:
    """The field and the message of the error of a run; none if it is allowed to write checkpoints."""
    try:
        RunSpec.model_validate({"strategy": "all_reduce", "nodes": 2, **fields})
    except ValidationError as error:
        return f"{error.errors()[0]['type']}: {error.errors()[0]['msg']}"
    return ""


def test_checkpoint_intervals_follow_the_strategy() -> None:
    kinds = {name: STRATEGIES.load(name).checkpoint_intervals for name in STRATEGIES.entries}
    able = {name for name, intervals in kinds.items() if intervals}
    for name in ("one_shot", "hogwild", "local_sgd", "ddp"):
        for interval in ("epochs", "steps"):
            found = refusal(strategy=name, **{f"checkpoint_{interval}": 2})
            assert found.startswith(f"checkpoint_{interval}: ") is (interval not in kinds[name])
            if found and kinds[name]:
                assert f"checkpoint_{kinds[name][0]}" in found
            elif found:
                assert {*found.partition("one of ")[2].split(", ")} == able


def test_compression_with_error_feedback_has_no_checkpoints() -> None:
    for compression in COMPRESSIONS.entries:
        found = refusal(strategy={"name": "all_reduce", "compression": compression}, checkpoint_steps=3)
        assert found.startswith("checkpoint_steps: all_reduce ") is (compression not in ("none", "fp16"))
