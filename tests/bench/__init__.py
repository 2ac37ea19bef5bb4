"""Measurements, as ratios taken side by side in one run. No test: a shared machine is too noisy."""
