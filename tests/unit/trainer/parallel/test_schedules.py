"""Mistakes in pipeline schedules: passes left out or in another order, deadlocks, idle time, memory."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import pytest

from trainer.parallel.schedules import Kind, Pass, Schedule, bubble, chunks_of, parts_of_work, passes

SIZES = list(product([1, 2, 3, 4], [1, 2, 3, 4, 8]))
INTERLEAVED = list(product([2, 3, 4], [2, 3, 4]))  # ranks and chunks
Case = tuple[Schedule, int, int, int]  # schedule, ranks, micro-batches, chunks
# Their bubble is that of the formula.
CASES: list[Case] = [
    *(("gpipe", ranks, count, 1) for ranks, count in SIZES),
    *(("1f1b", ranks, count, 1) for ranks, count in SIZES),
    *(("zero_bubble", ranks, count, 1) for ranks, count in SIZES if count >= ranks),
    *(("interleaved", ranks, k * ranks, chunks) for ranks, chunks in INTERLEAVED for k in (1, 2, 3)),
]
# Of a last batch with fewer samples.
SMALL: list[Case] = [
    *(("zero_bubble", ranks, count, 1) for ranks, count in SIZES if count < ranks),
    *(("interleaved", ranks, count, chunks) for ranks, chunks in INTERLEAVED for count in (1, ranks + 1)),
]
SECONDS: dict[Kind, float] = {"forward": 1.0, "backward": 2.0, "input": 1.0, "weight": 1.0}


def orders_of(case: Case) -> list[list[Pass]]:
    schedule, ranks, micro_batches, chunks = case
    return [passes(schedule, rank, ranks, micro_batches, chunks) for rank in range(ranks)]


def simulate(case: Case) -> float:
    """When the last rank ends, if communication takes no time. Fails on a deadlock.

    Messages from one rank to another are received in the order in which they are sent.
    """
    _, ranks, _, chunks = case
    queues, free, last = orders_of(case), [0.0] * ranks, ranks * chunks - 1
    # When messages arrive, by sender and receiver: is it forward, micro-batch, stage that receives it.
    arrived: dict[tuple[int, int], list[tuple[tuple[bool, int, int], float]]] = defaultdict(list)
    while any(queues):
        before = sum(map(len, queues))
        for rank, queue in enumerate(queues):
            while queue:
                this, now = queue[0], free[rank]
                stage, forward = this.chunk * ranks + rank, this.kind == "forward"
                source, to = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
                if this.kind != "weight" and 0 <= source <= last:
                    messages = arrived[source % ranks, rank]
                    if not messages:
                        break
                    found, at = messages.pop(0)
                    assert found == (forward, this.micro_batch, stage), case
                    now = max(now, at)
                free[rank] = now + SECONDS[this.kind]
                if this.kind != "weight" and 0 <= to <= last:
                    arrived[rank, to % ranks].append(((forward, this.micro_batch, to), free[rank]))
                queue.pop(0)
        assert sum(map(len, queues)) < before, f"{case}: every rank waits for another"
    return max(free)


def test_a_step_ends_and_its_bubble_is_that_of_the_formula() -> None:
    for case in SMALL:
        simulate(case)
    for case in CASES:
        schedule, ranks, micro_batches, chunks = case
        busy_s = micro_batches * chunks * 3.0
        found = bubble(ranks, parts_of_work(schedule, micro_batches, chunks))
        assert 1 - busy_s / simulate(case) == pytest.approx(found), case
    assert (chunks_of("interleaved", None), chunks_of("1f1b", None)) == (2, 1)


def test_micro_batches_have_their_passes_in_order_and_few_are_in_flight() -> None:
    for case in [*CASES, *SMALL]:
        schedule, ranks, micro_batches, chunks = case
        kinds = ["forward", "input", "weight"] if schedule == "zero_bubble" else ["forward", "backward"]
        for rank, order in enumerate(orders_of(case)):
            found, in_flight = defaultdict(list), [0]
            for each in order:
                found[each.micro_batch, each.chunk].append(each.kind)
                in_flight.append(in_flight[-1] + {"forward": 1, "input": 0}.get(each.kind, -1))
            assert found == dict.fromkeys(product(range(micro_batches), range(chunks)), kinds), case
            most = {
                "gpipe": micro_batches,
                "1f1b": ranks - rank,
                "zero_bubble": ranks,  # on all ranks, as on the first of 1f1b
                # Korthikanti et al. 2022, Sec. 4.2.3: on the first, 1 + (P - 1)/(P·v) times that of 1f1b.
                "interleaved": (chunks - 1) * ranks + 2 * (ranks - rank - 1) + 1,
            }[schedule]
            assert case in SMALL or max(in_flight) == min(most, micro_batches * chunks), case
