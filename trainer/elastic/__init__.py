"""Runs whose ranks are started again when one is lost: torchrun, with a meeting place of ours.

One agent of torchrun's runs on every node. It starts the node's ranks; when one is lost it ends the
others, meets the other nodes' agents again, who do the same, and starts its ranks anew: the next attempt.
All that is torchrun's own, but for where agents meet, which it lets one register.

    agent ── here ──►  rendezvous.py: N agents meet, that is an attempt; its number is in the store's keys
    agent ◄─ again ──  one has come to meet for the next attempt, and the others follow
    rank  ◄─ number ─  SHARDYARD_ATTEMPT: ranks of one attempt find each other under it, meeting.py
    rank  ── ended ─►  meeting.py: no rank leaves before all have given their results
    events ─────────►  attempts.py: which of them count (pure)
"""
