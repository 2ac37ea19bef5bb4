"""What must be in force before a rank trains: its node's CPU quota, and the links between nodes.

The quota applies from the first training step, so that start-up runs at full speed.
"""

from __future__ import annotations

from trainer.core.cgroup import wait_for_quota, wait_for_throttle
from trainer.core.context import NodeContext
from trainer.core.events import EventWriter
from trainer.core.routes import wait_until_linked

QUOTA_S = 60.0  # to apply it, once all ranks are ready
LINKS_S = 60.0  # to connect the nodes, once their containers run


class QuotaError(Exception):
    """The node's CPU quota was not applied in time; the message names it."""


class LinkError(Exception):
    """The node was not connected to the other nodes in time."""


class MemoryShortage(Exception):
    """The ranks do not fit into the memory of the machine; the message has the figures."""


def wait_for_links(context: NodeContext) -> None:
    """Wait until packets to the other nodes pass the switch of the run's links, if it has any.

    Connections that are opened before would send packets of another size. Raises LinkError.
    """
    if context.linked and not wait_until_linked(context.linked, LINKS_S):
        raise LinkError(f"links were not applied within {LINKS_S:.0f} s")


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
