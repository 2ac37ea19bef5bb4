"""Mistakes in what checks are made of: comparisons, loading, networks, stages of pipelines, sessions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.course.checks import Failure, close, equal, load_checks, shown
from orchestrator.course.network import Collective, Network
from orchestrator.course.pipeline import Pipeline
from orchestrator.course.student import Waiting
from orchestrator.course.training import Training
from orchestrator.errors import InputError


def test_close_values_pass_and_others_fail() -> None:
    for got, expected in (([1.0, 2.0], np.array([1.0, 2.0])), ([1e9 + 1], [1e9]), (3, 3.0), ([], [])):
        close(got, expected)
    others: list[tuple[Any, Any]] = [
        ([1.0, 2.1], [1.0, 2.0]),
        ([1.0], [1.0, 1.0]),
        ([[1.0]], [1.0]),
        (math.nan, 0.0),
        ([math.inf], [1.0]),
        (None, 1.0),
        ("x", 1.0),
        ([[1.0], [1.0, 2.0]], [1.0, 2.0]),
        ({"a": 1}, [1.0]),
    ]
    for got, expected in others:
        for compare in (close, equal):
            with pytest.raises(Failure):
                compare(got, expected)
    equal([1, 2], np.array([1, 2]))


def test_failures_show_values_in_one_short_line_and_of_long_arrays_the_first_wrong_one() -> None:
    for value in ("x" * 10**6, np.zeros(10**5), [[0.5] * 100] * 100, {"a": "\n" * 1000}):
        assert len(shown(value)) <= 120
        assert "\n" not in shown(value)
    got = np.zeros((3, 4))
    got[1, 2] = got[2, 0] = 5
    with pytest.raises(Failure) as caught:
        close(got, np.zeros((3, 4)), "it")
    assert (caught.value.problem, caught.value.got) == ("it", "5")
    assert caught.value.expected == "0 at [1, 2], the first of 2 wrong values of 12"


# Loading

CHECK = (
    "from shardyard.course import check\n@check({}, title='t', law='l', reason='r')\ndef f(student): pass\n"
)


def test_checks_of_a_directory_are_loaded_in_order(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.py").write_text(CHECK.format(f"'{name}.py', points=2"))
    found = load_checks([tmp_path, tmp_path / "b.py"])
    assert [each.file for each in found] == ["a.py", "b.py", "b.py"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "no checks"),
        ("x = (", "SyntaxError"),
        ("\nimport nothing_of_this_name", "line 2: ModuleNotFoundError"),
        (CHECK.format("'a.txt', points=1"), "line 2: ValueError: file 'a.txt'"),
        (CHECK.format("'a.py', points=0"), "check 't': points"),
        (CHECK.format("'a.py', points=1, cases=[]"), "cases must be above 0"),
        (None, "no such directory or Python file"),
    ],
)
def test_a_file_without_valid_checks_is_refused(text: str | None, message: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "checks.py").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_checks([tmp_path / "checks.py"])
    assert f"--tests {tmp_path}" in str(caught.value)


# Networks


def test_a_network_counts_and_orders_messages_and_changes_one() -> None:
    network = Network(2, change=1)
    (send, _), (_, recv) = network.functions(0), network.functions(1)
    with pytest.raises(Waiting, match="rank 0"):
        recv(0)
    for values in (np.array([1.0, 2.0]), [5], [5]):
        send(1, values)
    assert (network.sent, network.unread) == ([32, 0], [(0, 1)] * 3)
    assert network.messages == [(0, 1, 16), (0, 1, 8), (0, 1, 8)]
    assert [recv(0).tolist() for _ in range(3)] == [[1.0, 2.0], [6], [5]]
    assert network.unread == []


def test_a_network_refuses_what_is_no_other_rank_and_no_numbers() -> None:
    send, recv = Network(2).functions(0)
    peers: list[Any] = [0, 2, -1, 1.0, True, "1", None]
    for peer in peers:
        for call in (lambda peer: send(peer, [1]), recv):
            with pytest.raises(ValueError, match="rank"):
                call(peer)
    with pytest.raises(ValueError, match="numbers"):
        send(1, ["x"])


def test_a_collective_waits_for_all_ranks_and_refuses_different_shapes() -> None:
    collective = Collective(3)
    first, second, third = map(collective.function, range(3))
    for _ in range(2):  # a rank that waits is asked again
        with pytest.raises(Waiting, match="ranks 1, 2"):
            first([1.0])
    with pytest.raises(Waiting, match="rank 2"):
        second([2.0])
    assert third([3.0]).tolist() == first([1.0]).tolist() == second([2.0]).tolist() == [6.0]
    assert (collective.calls, collective.nbytes) == ([1, 1, 1], [8, 8, 8])
    for function, values in ((first, [1.0]), (second, [1.0])):
        with pytest.raises(Waiting):
            function(values)
    with pytest.raises(ValueError, match="shapes differ"):
        third([1.0, 2.0])


# Stages


def test_bubbles_of_gpipe_and_of_one_micro_batch_after_the_other_are_those_of_the_formulas() -> None:
    for stages, micro_batches in ((1, 1), (2, 1), (2, 4), (4, 8)):
        gpipe, one_by_one = Pipeline(stages), Pipeline(stages)
        for work in gpipe.work:
            work += [(way, m) for way in ("forward", "backward") for m in range(micro_batches)]
        for work in one_by_one.work:
            work += [(way, m) for m in range(micro_batches) for way in ("forward", "backward")]
        assert gpipe.bubble() == pytest.approx((stages - 1) / (micro_batches + stages - 1))
        assert one_by_one.bubble() == pytest.approx(1 - 1 / stages)


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
    pipeline, x = Pipeline(1), np.ones((1, 3))
    stage = pipeline.stage(0)
    stage.forward(0, x)
    stage.forward(1, x)
    stage.backward(0, x)
    assert (pipeline.held, pipeline.work[0]) == ([2], [("forward", 0), ("forward", 1), ("backward", 0)])
    for call, number, values, message in (
        (stage.forward, 1, x, "micro-batch 1"),
        (stage.backward, 0, x, "micro-batch 0"),
        (stage.forward, 2, x[0], "shape"),
    ):
        with pytest.raises(ValueError, match=message):
            call(number, values)


# Sessions


def test_batches_have_shares_of_samples_and_are_empty_where_none_are_left() -> None:
    session = Training([1, 5], batch=2, epochs=1).session(0)
    batches = session.synchronous_batches(1, "join")
    assert [(batch.samples, batch.share) for batch in batches] == [(1, 1 / 3), (0, 0), (0, 0)]
    with pytest.raises(ValueError, match="without samples"):
        session.replica().backward(batches[1])


def test_a_session_refuses_what_a_real_one_would() -> None:
    session = Training([2]).session(0)
    for call, *arguments in (
        (session.synchronous_batches, 0, "join"),
        (session.synchronous_batches, 1, "pad"),
        (session.averaging_weight, "samples"),
        (session.comm.weighted_mean, [1.0], -1),
        (session.comm.weighted_mean, [[1.0]], 1),
        (session.replica().set_weights, [1.0]),
    ):
        with pytest.raises(ValueError, match=r"must be|must have|no batches"):
            call(*arguments)
