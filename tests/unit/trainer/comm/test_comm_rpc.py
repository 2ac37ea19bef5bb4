"""Mistakes in what transport rpc sends, in one process; tests/integration runs several."""

from __future__ import annotations

import torch

from trainer.comm.rpc import _in_own_storage


def test_view_is_sent_without_the_rest_of_its_storage() -> None:
    whole = torch.arange(10.0)
    assert _in_own_storage(whole) is whole
    view = _in_own_storage(whole[2:9])
    assert view.untyped_storage().nbytes() == 7 * 4
    assert torch.equal(view, whole[2:9])
