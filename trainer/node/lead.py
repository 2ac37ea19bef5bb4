"""The coordinator of nodes that are no containers: it starts their agents, and serves one orchestrator."""

from __future__ import annotations

import asyncio
import os
from math import inf
from pathlib import Path

from trainer.node.coordinator import serve
from trainer.node.desk import Desk, PipeDesk, Request, coordinators_desk
from trainer.node.members import Started
from trainer.node.site import Plan

SILENCE_S = 30.0  # of an orchestrator that is connected through files, after which the coordinator ends


def main(text: str) -> int:
    """Lead the agents of a plan until the orchestrator ends. Returns the exit code."""
    plan = Plan.model_validate_json(text)
    desk: Desk[Request] = coordinators_desk(Path(plan.desk)) if plan.desk else over_stdio()
    silence_s = SILENCE_S if plan.desk else inf  # pipes are closed
    return asyncio.run(_lead(plan, desk, silence_s))


async def _lead(plan: Plan, desk: Desk[Request], silence_s: float) -> int:
    members = Started(plan)
    try:
        return await serve(desk, Path(plan.desk), lambda: members, idle_s=silence_s, silence_s=silence_s)
    finally:
        await members.close()


def over_stdio() -> PipeDesk[Request]:
    """Requests come through standard input, answers go to standard output, all else to standard error."""
    inbox, outbox = os.dup(0), os.dup(1)
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    return PipeDesk(inbox, outbox, Request)
