"""Learning-rate schedules, one file each: the rate over a training, as factors of the run's rate."""
