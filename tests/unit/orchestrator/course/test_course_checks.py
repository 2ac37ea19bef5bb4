"""Writing and loading checks: comparisons, cases, networks, stages and sessions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.course.checks import Failure, case_text, check, close, equal, holds, load_checks, shown
from orchestrator.course.network import Collective, Network
from orchestrator.course.pipeline import Pipeline
from orchestrator.course.student import Waiting
from orchestrator.course.training import Training
from orchestrator.errors import InputError


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ([1.0, 2.0], np.array([1.0, 2.0])),
        (np.array([1e9 + 1]), [1e9]),
        (3, 3.0),
        ([], []),
    ],
)
def test_close_values_pass(got: Any, expected: Any) -> None:
    close(got, expected)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ([1.0, 2.1], [1.0, 2.0]),
        ([1.0], [1.0, 1.0]),
        ([[1.0]], [1.0]),
        (math.nan, 0.0),
        ([math.inf], [1.0]),
        (None, 1.0),
        ("x", 1.0),
        ([[1.0], [1.0, 2.0]], [1.0, 2.0]),
        ({"a": 1}, [1.0]),
    ],
)
def test_other_values_fail(got: Any, expected: Any) -> None:
    with pytest.raises(Failure):
        close(got, expected)
    with pytest.raises(Failure):
        equal(got, expected)


def test_a_long_array_shows_its_first_wrong_value() -> None:
    got = np.zeros((3, 4))
    got[1, 2] = 5
    with pytest.raises(Failure) as caught:
        close(got, np.zeros((3, 4)), "it")
    assert "[1, 2]" in caught.value.expected
    assert caught.value.got == "5"


def test_a_condition_fails_with_its_values() -> None:
    holds(True, "it")
    with pytest.raises(Failure) as caught:
        holds(False, "it", "±1", [1, 3])
    assert (caught.value.problem, caught.value.expected, caught.value.got) == ("it", "±1", "[1, 3]")


@pytest.mark.parametrize("value", ["x" * 10**6, np.zeros(10**5), [[0.5] * 100] * 100, {"a": "\n" * 1000}])
def test_shown_values_are_one_short_line(value: Any) -> None:
    assert len(shown(value)) <= 120
    assert "\n" not in shown(value)


def test_cases_are_shown_by_name() -> None:
    assert case_text({"size": 2, "n": [1, 2]}) == "size=2, n=[1, 2]"
    assert case_text({}) == ""


# Loading


def test_checks_of_a_directory_are_loaded_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.py").write_text(
            "from shardyard.course import check\n\n\n"
            f"@check('{name}.py', points=2, title='t', law='l', reason='r')\n"
            "def one(student):\n    pass\n"
        )
    found = load_checks([tmp_path, tmp_path / "b.py"])
    assert [each.file for each in found] == ["a.py", "b.py", "b.py"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "no checks"),
        ("x = (", "SyntaxError"),
        ("\nimport nothing_of_this_name", "line 2: ModuleNotFoundError"),
        (
            "from shardyard.course import check\ncheck('a.txt', points=1, title='', law='', reason='')",
            "a.txt",
        ),
        (
            "from shardyard.course import check\ncheck('a.py', points=0, title='', law='', reason='')",
            "points",
        ),
    ],
)
def test_a_file_without_valid_checks_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "checks.py").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_checks([tmp_path])
    assert str(tmp_path) in str(caught.value)


def test_missing_tests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such directory or Python file"):
        load_checks([tmp_path / "none"])


def test_a_check_needs_cases() -> None:
    with pytest.raises(ValueError, match="cases"):
        check("a.py", points=1, title="t", law="l", reason="r", cases=[])


# Networks


def test_a_network_counts_and_orders_messages() -> None:
    network = Network(2)
    (send, _), (_, recv) = network.functions(0), network.functions(1)
    with pytest.raises(Waiting, match="rank 0"):
        recv(0)
    send(1, np.array([1.0, 2.0]))
    send(1, [3])
    assert (network.sent, network.unread) == ([24, 0], [(0, 1), (0, 1)])
    assert [recv(0).tolist(), recv(0).tolist()] == [[1.0, 2.0], [3]]
    assert network.messages == [(0, 1, 16), (0, 1, 8)]
    assert network.unread == []


def test_a_network_changes_one_message() -> None:
    network = Network(2, change=1)
    send, recv = network.functions(0)[0], network.functions(1)[1]
    for _ in range(3):
        send(1, [5])
    assert [int(recv(0)[0]) for _ in range(3)] == [5, 6, 5]


@pytest.mark.parametrize("peer", [0, 2, -1, 1.0, True, "1", None])
def test_a_network_refuses_what_is_no_other_rank(peer: Any) -> None:
    send, recv = Network(2).functions(0)
    with pytest.raises(ValueError, match="rank"):
        send(peer, [1])
    with pytest.raises(ValueError, match="rank"):
        recv(peer)


def test_a_network_carries_numbers_only() -> None:
    with pytest.raises(ValueError, match="numbers"):
        Network(2).functions(0)[0](1, ["x"])


def test_a_collective_waits_for_all_ranks() -> None:
    collective = Collective(3)
    first, second, third = map(collective.function, range(3))
    for _ in range(2):  # a rank that waits is asked again
        with pytest.raises(Waiting, match="ranks 1, 2"):
            first([1.0])
    with pytest.raises(Waiting, match="rank 2"):
        second([2.0])
    assert third([3.0]).tolist() == first([1.0]).tolist() == second([2.0]).tolist() == [6.0]
    assert (collective.calls, collective.nbytes) == ([1, 1, 1], [8, 8, 8])


def test_a_collective_refuses_different_shapes() -> None:
    collective = Collective(2)
    with pytest.raises(Waiting):
        collective.function(0)([1.0])
    with pytest.raises(ValueError, match="shapes differ"):
        collective.function(1)([1.0, 2.0])


# Stages


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 1), (2, 4), (4, 8)])
def test_the_bubble_of_gpipe_is_that_of_the_formula(stages: int, micro_batches: int) -> None:
    pipeline = Pipeline(stages)
    for work in pipeline.work:
        work += [("forward", m) for m in range(micro_batches)]
        work += [("backward", m) for m in range(micro_batches)]
    assert pipeline.bubble() == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_stages_one_after_the_other_are_idle_most_of_the_time() -> None:
    pipeline = Pipeline(4)
    for work in pipeline.work:
        for m in range(3):
            work += [("forward", m), ("backward", m)]
    assert pipeline.bubble() == pytest.approx(3 / 4)


def test_the_gradient_of_a_pipeline_is_that_of_its_loss() -> None:
    rng = np.random.default_rng(3)
    inputs, targets = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    pipeline, step = Pipeline(2), 1e-6
    gradient = pipeline.gradients(inputs, targets)[0][1, 2]

    def loss() -> float:
        x = inputs
        for weights in pipeline.weights:
            x = np.tanh(x @ weights)
        return float(0.5 * ((x - targets) ** 2).sum(axis=1).mean())

    before = loss()
    pipeline.weights[0][1, 2] += step
    assert (loss() - before) / step == pytest.approx(gradient, rel=1e-4)


def test_a_stage_counts_what_it_stores_and_refuses_a_pass_twice() -> None:
    pipeline = Pipeline(1)
    stage = pipeline.stage(0)
    for m in range(2):
        stage.forward(m, np.ones((1, 3)))
    with pytest.raises(ValueError, match="micro-batch 1"):
        stage.forward(1, np.ones((1, 3)))
    stage.backward(0, np.ones((1, 3)))
    with pytest.raises(ValueError, match="micro-batch 0"):
        stage.backward(0, np.ones((1, 3)))
    with pytest.raises(ValueError, match="shape"):
        stage.forward(2, np.ones(3))
    assert pipeline.held == [2]
    assert pipeline.work[0] == [("forward", 0), ("forward", 1), ("backward", 0)]


# Sessions


def test_a_session_trains_its_rank() -> None:
    training = Training([3], batch=2, epochs=1, lr=0.5)
    session = training.session(0)
    replica = session.replica()
    batches = session.synchronous_batches(1, "join")
    assert [batch.samples for batch in batches] == [2, 1]
    for batch in batches:
        expected = replica.weights() - 0.5 * training.gradient(0, batch.step, replica.weights())
        replica.backward(batch)
        replica.step()
        np.testing.assert_allclose(replica.weights(), expected)
    assert session.averaging_weight("size") == 3
    session.averaged()
    assert session.averaging_weight("size") == 0
    assert session.comm.weighted_mean([1.0, 2.0], 3).tolist() == [1.0, 2.0]
    assert training.averages == [[2]]


def test_a_rank_without_samples_left_has_empty_batches() -> None:
    training = Training([1, 5], batch=2, epochs=1)
    session = training.session(0)
    batches = session.synchronous_batches(1, "join")
    assert [batch.samples for batch in batches] == [1, 0, 0]
    with pytest.raises(ValueError, match="without samples"):
        session.replica().backward(batches[1])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda session: session.synchronous_batches(0, "join"),
        lambda session: session.synchronous_batches(1, "pad"),
        lambda session: session.averaging_weight("samples"),
        lambda session: session.comm.weighted_mean([1.0], -1),
        lambda session: session.comm.weighted_mean([[1.0]], 1),
        lambda session: session.replica().set_weights([1.0]),
    ],
)
def test_a_session_refuses_what_a_real_one_would(wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"must be|must have|no batches"):
        wrong(Training([2]).session(0))
