"""From a run to its launch plan. Pure: it can be printed and tested without starting anything."""

from __future__ import annotations

from dataclasses import dataclass

from trainer.spec import RunSpec


@dataclass(frozen=True)
class LaunchPlan:
    """What a runtime has to start, whatever it starts it with.

    environment: of every rank's process. A process computes with as many threads as the spec says, and
    no library may think otherwise: two ranks with two threads each on two cores ran 3 to 25 times
    slower than with one.
    """

    key: str
    topology: str
    nodes: int
    environment: dict[str, str]
    spec: RunSpec


THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def plan(run: RunSpec) -> LaunchPlan:
    """How the nodes of `run` are wired and started."""
    return LaunchPlan(
        key=run.key,
        topology=run.topology,
        nodes=run.nodes,
        environment=dict.fromkeys(THREAD_VARIABLES, str(run.threads)),
        spec=run,
    )
