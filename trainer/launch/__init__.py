"""Starts ranks from a launcher's environment, under a watchdog."""
