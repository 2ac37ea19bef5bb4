"""Runtime `swarm`: a run is a stack of services on a Docker Swarm."""
