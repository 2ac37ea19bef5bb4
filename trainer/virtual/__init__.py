"""Virtual nodes: ranks of one process that train for real, one after the other, in simulated time."""
