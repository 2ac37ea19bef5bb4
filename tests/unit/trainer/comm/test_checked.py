"""Mistakes of the communicator of runs with `debug`: differences that it misses, and ranks that it names.

`test_exchanges` compares its results and its counts with those of other communicators.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError

from tests.unit.conftest import PROJECT
from tests.unit.threads import together
from trainer.comm.base import Communicator
from trainer.comm.memory import MemoryCommunicator, ThreadGroup
from trainer.core.clock import Clock
from trainer.launch.checked import CheckedCommunicator, MismatchError
from trainer.spec.run_spec import RunSpec


def ranks(*bodies: str) -> list[Any]:
    """Let each rank evaluate its expression of `comm`. Returns results and exceptions.

    The expressions are in the file `trainer/strategies/mine.py`, rank r's in line r + 1.
    """

    def run(comm: Communicator) -> Any:
        code = "\n" * comm.rank + bodies[comm.rank]
        names = {"comm": CheckedCommunicator(comm), "own": torch.arange(6.0) + comm.rank, "torch": torch}
        return eval(compile(code, str(PROJECT / "trainer/strategies/mine.py"), "eval"), names)

    return together(len(bodies), run)


def mismatches(*bodies: str) -> list[str]:
    """What the ranks that notice it say; the others lose their peer."""
    return [str(each) for each in ranks(*bodies) if isinstance(each, MismatchError)]


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
    first, second = ranks("comm.send(own, 1)", "comm.recv(own[:4], 0)")
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
