"""A switch in user space: the links between the containers of a run that requests links.

    node 0 ── link0 ──┐               ┌── link0 ── node 1
                    switch: bandwidth, latency, jitter and loss

A plug (plug.py) runs for a moment in the network namespace of each node. It creates the TUN device `link0`,
sends its descriptor to the switch, and routes the addresses of the other nodes through it. So all packets
between nodes pass the switch (server.py), which delays or drops them (shaping.py). Nodes keep their
addresses and need no privilege. The switch needs none either, and has no network of its own: it only holds
descriptors. When it ends, the devices and their routes disappear.

The kernel could do this with tc, but not without the queueing discipline netem, which many kernels lack,
such as that of WSL2. A switch in user space works the same on all of them.
"""
