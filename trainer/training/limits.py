"""The CPU quota of a node applies from the first training step, so that start-up runs at full speed."""

from __future__ import annotations

from trainer.core.cgroup import wait_for_quota, wait_for_throttle
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter

QUOTA_S = 60.0  # to apply it, once all ranks are ready


class QuotaError(Exception):
    """The node's CPU quota was not applied in time; the message names it."""


def wait_for_limits(context: NodeContext, events: EventWriter) -> None:
    """Report that this rank is ready to train, and wait until its node's CPU quota is in force.

    Returns at once if nothing applies a quota during the run. Raises QuotaError.
    """
    if context.cpu_quota is None:
        return
    events.write("ready")
    applied = (
        wait_for_throttle(context.throttle_mark, QUOTA_S)
        if context.throttle_mark
        else wait_for_quota(context.cpu_quota, QUOTA_S)
    )
    if not applied:
        raise QuotaError(f"CPU quota {context.cpu_quota:g} was not applied within {QUOTA_S:.0f} s")
