"""Mistakes in pipeline schedules: passes left out or in another order, deadlocks, idle time, memory."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import pytest

from trainer.parallel.schedules import Kind, Pass, Schedule, bubble, chunks_of, parts_of_work, passes

FLUSHING: list[Schedule] = ["gpipe", "1f1b"]
SIZES = list(product([1, 2, 3, 4], [1, 2, 3, 4, 8]))
INTERLEAVED = list(product([2, 3, 4], [2, 3, 4]))  # ranks and chunks
Case = tuple[Schedule, int, int, int]  # schedule, ranks, micro-batches, chunks
# Their bubble is that of the formula.
CASES: list[Case] = [
    *((schedule, ranks, count, 1) for schedule in FLUSHING for ranks, count in SIZES),
    *(("zero_bubble", ranks, count, 1) for ranks, count in SIZES if count >= ranks),
    *(("interleaved", ranks, k * ranks, chunks) for ranks, chunks in INTERLEAVED for k in (1, 2, 3)),
]
# Of a last batch with fewer samples.
SMALL: list[Case] = [
    *(("zero_bubble", ranks, count, 1) for ranks, count in SIZES if count < ranks),
    *(("interleaved", ranks, ranks + 1, chunks) for ranks, chunks in INTERLEAVED),
    *(("interleaved", ranks, 1, chunks) for ranks, chunks in INTERLEAVED),
]
SECONDS: dict[Kind, float] = {"forward": 1.0, "backward": 2.0, "input": 1.0, "weight": 1.0}


def orders_of(case: Case) -> list[list[Pass]]:
    schedule, ranks, micro_batches, chunks = case
    return [passes(schedule, rank, ranks, micro_batches, chunks) for rank in range(ranks)]


def simulate(case: Case) -> float:
    """When the last rank ends, if communication takes no time. Fails on a deadlock."""
    _, ranks, _, chunks = case
    queues = orders_of(case)
    last = ranks * chunks - 1
    finished: dict[tuple[str, int, int], float] = {}  # by kind, micro-batch and stage
    free = [0.0] * ranks
    while any(queues):
        progress = False
        for rank, queue in enumerate(queues):
            if not queue:
                continue
            this = queue[0]
            stage = this.chunk * ranks + rank
            direction = "forward" if this.kind == "forward" else "backward"
            if this.kind == "weight":
                needed = "backward", this.micro_batch, stage
            elif direction == "forward":
                needed = "forward", this.micro_batch, stage - 1
            elif stage == last:
                needed = "forward", this.micro_batch, stage
            else:
                needed = "backward", this.micro_batch, stage + 1
            input_at = 0.0 if needed[2] < 0 else finished.get(needed)
            if input_at is not None:
                free[rank] = max(free[rank], input_at) + SECONDS[this.kind]
                done = "weight" if this.kind == "weight" else direction
                finished[done, this.micro_batch, stage] = free[rank]
                queue.pop(0)
                progress = True
        assert progress, "deadlock: every rank waits for another"
    return max(free)


def test_every_micro_batch_has_its_passes_in_order() -> None:
    for case in [*CASES, *SMALL]:
        schedule, _, micro_batches, chunks = case
        kinds = ["forward", "input", "weight"] if schedule == "zero_bubble" else ["forward", "backward"]
        for order in orders_of(case):
            found = defaultdict(list)
            for each in order:
                found[each.micro_batch, each.chunk].append(each.kind)
            assert found == dict.fromkeys(product(range(micro_batches), range(chunks)), kinds), case


def test_messages_are_sent_in_the_order_in_which_they_are_received() -> None:
    """From one rank to another they have one order. With two ranks, gradients are among the activations."""
    for case in [*CASES, *SMALL]:
        _, ranks, _, chunks = case
        last = ranks * chunks - 1
        sent: dict[tuple[int, int], list[tuple[bool, int, int]]] = defaultdict(list)
        received: dict[tuple[int, int], list[tuple[bool, int, int]]] = defaultdict(list)
        for rank, order in enumerate(orders_of(case)):
            for each in (each for each in order if each.kind != "weight"):
                stage, forward = each.chunk * ranks + rank, each.kind == "forward"
                before, after = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
                if 0 <= before <= last:
                    received[before % ranks, rank].append((forward, each.micro_batch, stage))
                if 0 <= after <= last:
                    sent[rank, after % ranks].append((forward, each.micro_batch, after))
        assert sent == received, case


def test_bubble_of_equal_stages_equals_the_formula() -> None:
    for case in CASES:
        schedule, ranks, micro_batches, chunks = case
        busy_s = micro_batches * chunks * 3.0
        found = bubble(ranks, parts_of_work(schedule, micro_batches, chunks))
        assert 1 - busy_s / simulate(case) == pytest.approx(found), case


def test_a_small_batch_ends() -> None:
    for case in SMALL:
        simulate(case)


def test_formulas_of_the_papers() -> None:
    """Relative to the time of the passes, not of the step: (P - 1)/(v·M), and a third of 1F1B's."""

    def relative(schedule: Schedule, chunks: int | None = None) -> float:
        share = bubble(4, parts_of_work(schedule, 8, chunks))
        return share / (1 - share)

    assert relative("1f1b") == relative("gpipe") == pytest.approx(3 / 8)
    assert relative("interleaved") == pytest.approx(3 / (2 * 8))
    assert relative("interleaved", 3) == pytest.approx(3 / (3 * 8))
    assert relative("zero_bubble") == pytest.approx(relative("1f1b") / 3)
    assert (chunks_of("interleaved", None), chunks_of("1f1b", None)) == (2, 1)


def test_micro_batches_in_flight() -> None:
    for case in CASES:
        schedule, ranks, micro_batches, chunks = case
        for rank, order in enumerate(orders_of(case)):
            in_flight = [0]
            for each in order:
                in_flight.append(in_flight[-1] + {"forward": 1, "input": 0}.get(each.kind, -1))
            most = {
                "gpipe": micro_batches,
                "1f1b": ranks - rank,
                "zero_bubble": ranks,  # on all ranks, as on the first of 1f1b
                # Korthikanti et al. 2022, Sec. 4.2.3: on the first, 1 + (P - 1)/(P·v) times that of 1f1b.
                "interleaved": (chunks - 1) * ranks + 2 * (ranks - rank - 1) + 1,
            }[schedule]
            assert max(in_flight) == min(most, micro_batches * chunks), case
            assert in_flight[-1] == 0
