"""Runtime `slurm`: a run is a job of a Slurm cluster."""
