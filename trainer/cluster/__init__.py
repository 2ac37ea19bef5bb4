"""What the containers of a run are to each other: a head that calls the roll, and the members it calls.

Compose starts N copies of one service and tells none of them how many there are. The head does: compose
starts it when every node has been started, so the addresses behind the name `node` are all of them. It
waits until each has reported, numbers them without gaps in the order of their containers' numbers, tells
every member the whole roster, keeps the events that they send, and says how the run has ended.

    member ── hello ──►  head        roll.py: who gets which ranks (pure)
    member ◄─ roster ──  head        wire.py: one JSON object per line
    member ── event … ►  head        head.py, member.py: the two ends
    member ── exit ───►  head        commands.py: what a member starts (pure)
    member ◄─ bye ─────  head        ssh.py: keys of a run of Open MPI
"""
