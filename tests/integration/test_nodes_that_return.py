"""Nodes that return: what a run reports once no node is left that was there all the time."""

from __future__ import annotations

import pytest

from tests.support.runs import RunCache

pytestmark = pytest.mark.nightly


def test_nodes_that_have_returned_certify_the_epochs_that_they_missed(run_cache: RunCache) -> None:
    """The pause gives the lost node time to return before the next epoch."""

    def returns(node: int, epoch: int) -> list[dict[str, object]]:
        kill = {"kill": {"node": node, "return_after": 0.1}, "at": {"epoch": epoch}}
        return [kill, {"pause": {"node": 1 - node, "seconds": 3}, "at": {"epoch": epoch}}]

    row = run_cache.get(
        strategy="local_sgd",
        transport="gloo",
        nodes=2,
        epochs=5,
        partitioner={"name": "random_partition", "reshuffle": True},
        on_loss="continue",
        save_weights=False,
        faults=[*returns(0, 2), *returns(1, 4)],
    ).result
    assert (row.status, row.cause) == ("ok", None)
    assert row.certificate is not None
    assert [split.epoch for split in row.certificate.splits] == [1, 2, 3, 4, 5]
    trained = {(part.epoch, part.rank) for part in row.certificate.parts}
    assert trained == {(epoch, rank) for epoch in range(1, 6) for rank in (0, 1)} - {(2, 0), (4, 1)}
    assert row.certificate.verified
    assert row.certificate.samples_lost == 240
