"""A run's result in cluster time: what its ranks would have measured on the described cluster."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.replay.run import ClusterTime
from orchestrator.results.records import EpochPoint, RankResult, RunResult


def on_cluster(result: RunResult, cluster: ClusterTime) -> RunResult:
    """The result with all times of training replaced by cluster time.

    Evaluation, start-up and bytes stay as measured. A rank's training time ends with its last record, while
    others may still train.
    """

    def of_rank(rank: RankResult) -> RankResult:
        its = cluster.ranks[rank.rank]
        seconds = {
            **dict.fromkeys(rank.seconds, 0.0),
            **its.work_s,
            "communicate": its.communicate_s,
            "wait": its.wait_s,
            "evaluate": rank.seconds.get("evaluate", 0.0),
        }
        return rank.model_copy(
            update={
                "train_s": cluster.cluster_s - its.idle_s,
                "seconds": seconds,
                "wait_s_by_rank": its.wait_s_by_rank if len(cluster.ranks) > 1 else None,
            }
        )

    def of_epoch(point: EpochPoint) -> EpochPoint:
        return point.model_copy(update={"train_s": cluster.epoch_ends_s[point.epoch - 1]})

    return result.model_copy(
        update={
            "ranks": [of_rank(rank) for rank in result.ranks],
            "epochs": [of_epoch(point) for point in result.epochs],
            # Clocks of a replay are common to all ranks, wherever they ran.
            "runtime_info": replace(result.runtime_info, one_clock=True),
        }
    )
