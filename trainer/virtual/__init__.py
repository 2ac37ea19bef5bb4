"""Virtual nodes: ranks that train for real in simulated time, one after the other in each process."""
