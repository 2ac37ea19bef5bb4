"""Runtime `docker`: nodes are containers."""
