"""Runtime `virtual`: nodes that train for real and take turns in one process, in simulated time."""
