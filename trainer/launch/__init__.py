"""From a launcher's environment to running ranks, under a watchdog."""
