"""Warm nodes: a process that has imported torch and loaded the data forks the ranks of every run."""
