"""Inside a Slurm job that all runs of a sweep share: its leader, and the warm nodes."""
