"""Figures of a run with users' components, for commands that train nothing. Runs users' code."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from trainer.component_trials.messages import TrialAnswer, TrialRequest
from trainer.core.record import checked
from trainer.spec.run_spec import RunSpec
from trainer.strategies.hybrid import Hybrid
from trainer.training.partition import partition_summary


def figures(request: TrialRequest) -> TrialAnswer:
    """Costs of blocks, parameters of ranks, or a partition. Raises what users' code raises."""
    run, found = RunSpec.model_validate(request.run), dict[str, Any]()
    if request.kind == "profile":
        from trainer.training.profile import profile_model

        found["blocks"] = [
            {**asdict(each), "output_shape": [*each.output_shape]} for each in profile_model(run)
        ]
    elif request.kind == "ranks" and isinstance(run.strategy, Hybrid):
        found["rank_parameters"] = run.strategy.parameters_by_rank(run, request.split_points)
    else:
        data = run.dataset.load(Path(request.data_dir))
        summary = partition_summary(run, data.train.labels, data.classes)
        distances = {"js_divergence": [*summary.js_divergence]}
        distances["earth_movers_distance"] = [*summary.earth_movers_distance]
        found["partition"] = {**asdict(summary), **distances, "labels": summary.labels.tolist()}
    return checked(TrialAnswer, found, "its figures")
