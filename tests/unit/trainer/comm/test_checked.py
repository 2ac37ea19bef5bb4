"""The communicator of runs with `debug`: over threads, each exchange against the same one without it."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.unit.conftest import PROJECT
from trainer.comm.base import CommunicationError, Communicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.launch.checked import CheckedCommunicator, MismatchError
from trainer.spec.run_spec import RunSpec


def ranks(size: int, *bodies: str, checked: bool = True) -> list[Any]:
    """Let each rank evaluate its expression of `comm`, or the last. Returns results and exceptions.

    The expressions are in the file `trainer/strategies/mine.py`, rank r's in line r + 1.
    """
    group, outcomes = ThreadGroup(size), [None] * size

    def run(rank: int) -> None:
        clock = Clock()
        clock.start()
        comm: Communicator = MemoryCommunicator(rank, size, clock, group)
        comm = CheckedCommunicator(comm) if checked else comm
        body = bodies[min(rank, len(bodies) - 1)]
        code = compile("\n" * rank + body, str(PROJECT / "trainer/strategies/mine.py"), "eval")
        own = torch.arange(6.0) + rank
        try:
            result = eval(code, {"comm": comm, "own": own, "torch": torch})
            outcomes[rank] = (result, own, comm.bytes_sent, comm.bytes_to)  # type: ignore[call-overload]
        except (MismatchError, CommunicationError, RuntimeError) as error:
            outcomes[rank] = error  # type: ignore[call-overload]
            comm.abort()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def mismatches(*bodies: str) -> list[str]:
    """What the ranks that notice it say; the others lose their peer."""
    return [str(each) for each in ranks(len(bodies), *bodies) if isinstance(each, MismatchError)]


AROUND = "comm.isend(own, (comm.rank + 1) % comm.size), comm.recv(own, (comm.rank - 1) % comm.size)"
SAME = [
    "comm.all_reduce(own, 'mean')",
    "comm.all_gather(own)",
    "comm.all_gather_float64(own.double())",
    "comm.all_to_all(own.view(3, 2))",
    "comm.broadcast(own, 2)",
    "comm.gather(own, 1)",
    "comm.barrier()",
    "comm.shift(own, 2)",
    "comm.weighted_mean(own, comm.rank)",
    f"({AROUND})[1]",
    "comm.split(comm.rank % 2).all_gather(own)",
]


@pytest.mark.parametrize("body", SAME)
def test_equal_exchanges_have_the_same_results_and_bytes(body: str) -> None:
    plain, checked = ranks(3, body, checked=False), ranks(3, body)
    assert not any(isinstance(each, Exception) for each in checked)
    for one, other in zip(plain, checked, strict=True):
        assert str(one) == str(other)


@pytest.mark.parametrize(
    ("bodies", "message"),
    [
        (
            ["comm.barrier()", "comm.all_reduce(own, 'mean')"],
            "rank 0 calls barrier at trainer/strategies/mine.py:1 while rank 1 calls all_reduce(mean) of 6 "
            "elements at trainer/strategies/mine.py:2",
        ),
        (["comm.all_reduce(own, 'sum')", "comm.all_reduce(own, 'mean')"], "all_reduce(mean)"),
        (["comm.all_reduce(own, 'sum')", "comm.all_reduce(own[:5], 'sum')"], "5 elements"),
        (["comm.all_gather(own)", "comm.all_gather(own.double())"], "float64"),
        (["comm.broadcast(own, 0)", "comm.broadcast(own, 1)"], "from rank 1"),
        (["comm.shift(own, 1)", "comm.shift(own, -1)"], "by -1"),
        (["comm.barrier()", "comm.barrier()", "comm.split(0)"], "rank 2 calls all_gather"),
    ],
)
def test_a_mismatch_names_two_ranks(bodies: list[str], message: str) -> None:
    found = mismatches(*bodies)
    assert len({*found}) == 1
    assert message in found[0]


def test_a_receiver_checks_the_message() -> None:
    first, second = ranks(2, "comm.send(own, 1)", "comm.recv(own[:4], 0)")
    assert isinstance(second, MismatchError)
    assert "send of 6 elements to rank 1 at trainer/strategies/mine.py:1" in str(second)
    assert "recv of 4 elements from rank 0 at trainer/strategies/mine.py:2" in str(second)
    assert not isinstance(first, MismatchError)


def test_messages_name_ranks_of_the_run() -> None:
    body = "comm.split(comm.rank > 0).{}"
    found = mismatches(body.format("barrier()"), body.format("barrier()"), body.format("all_gather(own)"))
    assert found
    assert all("rank 1 calls barrier" in each and "rank 2 calls all_gather" in each for each in found)


def test_debug_is_refused_where_the_others_continue() -> None:
    fields = {"strategy": "gossip", "transport": "gloo", "nodes": 2, "debug": True}
    assert RunSpec.model_validate(fields).debug
    with pytest.raises(ValidationError) as refused:
        RunSpec.model_validate(fields | {"on_loss": "continue"})
    assert [error["type"] for error in refused.value.errors()] == ["debug"]


def test_requests_to_a_server_are_those_of_the_transport() -> None:
    class WithRequests(MemoryCommunicator):
        def requests(self, timeout_s: float) -> Any:
            return ("requests", timeout_s)

    comm = WithRequests(0, 1, Clock(), ThreadGroup(1))
    assert CheckedCommunicator(comm).requests(3.0) == ("requests", 3.0)
