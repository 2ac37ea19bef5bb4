"""Mistakes in the check of arriving weights: a vector that is refused, or bytes taken after its end."""

from __future__ import annotations

import io

import numpy as np
import pytest

from trainer.cluster.incoming_weights import HEADER_BYTES, IncomingWeights


@pytest.mark.parametrize("part", [1, 100, HEADER_BYTES, 10**6])
@pytest.mark.parametrize("parameters", [0, 1, 1000])
def test_every_vector_of_weights_is_allowed(parameters: int, part: int) -> None:
    file = io.BytesIO()
    np.save(file, np.zeros(parameters, dtype=np.float32))
    data, incoming = file.getvalue(), IncomingWeights(HEADER_BYTES + 4 * parameters)
    for first in range(0, len(data), part):
        incoming.add(data[first : first + part], last=first + part >= len(data))
    with pytest.raises(ValueError, match="weights"):
        incoming.add(b"", last=True)
