"""Coordination of a run's containers: one coordinator, and one agent in every other container.

Compose starts N replicas of one service and tells no container what N is. It starts the coordinator last,
so the addresses behind the DNS name `node` are those of all nodes. The coordinator waits until every agent
has registered, assigns ranks without gaps in the order of the container numbers, sends the assignment to
every agent, records the events they forward, and reports how the run ended.

    agent ── hello ──────►  coordinator     rank_assignment.py: which agent gets which ranks (pure)
    agent ◄─ assignment ──  coordinator     protocol.py: one JSON object per line
    agent ── event … ────►  coordinator     coordinator.py, agent.py: the two ends
    agent ── exit ───────►  coordinator     commands.py: the processes that an agent starts (pure)
    agent ◄─ shutdown ────  coordinator     ssh.py: keys of one Open MPI run
                                            run_record.py: the files that the coordinator writes
                                            incoming_weights.py: checks of rank 0's weights
                                            incoming_trace.py: checks of a rank's trace
"""
