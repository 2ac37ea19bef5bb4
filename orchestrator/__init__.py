"""What runs on the user's machine: sweeps become runs, runs become results, results become a report."""

__version__ = "2.0.0.dev0"
