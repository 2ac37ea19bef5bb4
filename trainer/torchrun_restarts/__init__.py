"""Restarts: torchrun starts all ranks again when one is lost, with our own rendezvous backend.

Every node runs one torchrun agent, which starts the node's ranks. When a rank is lost, its agent stops the
node's other ranks and goes back to the rendezvous. The other nodes' agents notice, do the same, and start
their ranks anew: the next attempt. torchrun does all of this but the rendezvous, for which it lets users
register a backend.

    agent ── arrived ──►  rendezvous.py: an attempt starts when N agents have arrived
    agent ◄─ waiting ──   an agent has arrived for the next attempt, and the others follow
    rank  ◄─ number ───   SHARDYARD_ATTEMPT: prefix of the attempt's keys, comm/attempt_store.py
    rank  ── ended ────►  comm/attempt_store.py: no rank exits before all have reported results
    events ────────────►  attempts.py: the attempt that counts (pure)
"""
