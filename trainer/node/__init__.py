"""Nodes: an agent on each, and the coordinator that leads them.

Compose starts N replicas of one service and tells no container what N is. It starts the coordinator last,
so the addresses behind the DNS name `node` are those of all nodes. Elsewhere the coordinator starts the
agents. It waits until every agent has registered, assigns ranks without gaps in the order of the agents'
numbers, sends the assignment to every agent, records what they forward, and reports how the run ended.

    agent ── hello ──────►  coordinator     members.py, container_agents.py: how both connect
    agent ◄─ assignment ──  coordinator     rank_assignment.py: which agent gets which ranks (pure)
    agent ── events … ───►  coordinator     protocol.py: one JSON object per line; agent.py, coordinator.py
    agent ── exit ───────►  coordinator     commands.py: the processes that an agent starts (pure)
    agent ◄─ shutdown ────  coordinator     site.py: where agents are; preparation.py: what they need there
    agent ── clean ──────►  coordinator     clean_up.py: what a run can leave in a container

    orchestrator ── run ──►  coordinator    channel.py: the two ends of this exchange
    orchestrator ◄─ ended ─  coordinator    lead.py: coordinators outside of containers
"""
