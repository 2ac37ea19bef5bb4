"""Parameters of strategies that are components themselves. Imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from trainer.aggregation.base import Aggregation
from trainer.spec.registries import AGGREGATIONS

AggregationRule = Annotated[
    Aggregation, AGGREGATIONS, Field(description="how the vectors of ranks become one")
]
