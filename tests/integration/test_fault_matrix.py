"""A sample of the fault matrix; `make faults` plays all cases with several seeds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.case import DOCKER, Case
from tests.faults.runner import References, missing, play
from tests.faults.table import CASES

pytestmark = pytest.mark.nightly


def _sample() -> Iterator[Any]:
    for case in CASES:
        for runtime in case.sample:
            marks = [pytest.mark.containers] if runtime == DOCKER else []
            yield pytest.param(case, runtime, id=f"{case.name}-{runtime}", marks=marks)


@pytest.fixture(scope="module")
def references() -> References:
    return References()


@pytest.mark.parametrize(("case", "runtime"), [*_sample()])
def test_case_holds(case: Case, runtime: str, references: References) -> None:
    if reason := missing(case, runtime):
        pytest.skip(reason)
    assert play(case, runtime, 0, references).wrong == []
