"""The coordinator of nodes that are no containers: it starts their agents, and serves one orchestrator."""

from __future__ import annotations

import asyncio
from math import inf
from pathlib import Path

from trainer.core.processes import own_streams
from trainer.node.channel import Channel, PipeChannel, Request, coordinators_channel
from trainer.node.coordinator import serve
from trainer.node.members import Started
from trainer.node.site import Plan

SILENCE_S = 30.0  # of an orchestrator that is connected through files, after which the coordinator ends


def main(text: str) -> int:
    """Lead the agents of a plan until the orchestrator ends. Returns the exit code."""
    plan = Plan.model_validate_json(text)
    channel: Channel[Request] = coordinators_channel(Path(plan.channel)) if plan.channel else over_stdio()
    silence_s = SILENCE_S if plan.channel else inf  # pipes are closed
    return asyncio.run(_lead(plan, channel, silence_s))


async def _lead(plan: Plan, channel: Channel[Request], silence_s: float) -> int:
    members = Started(plan)
    try:
        return await serve(
            channel, Path(plan.channel), lambda: members, idle_s=silence_s, silence_s=silence_s
        )
    finally:
        await members.close()


def over_stdio() -> PipeChannel[Request]:
    """Requests come through standard input, answers go to standard output, all else to standard error."""
    return PipeChannel(*own_streams(), Request)
