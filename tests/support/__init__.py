"""Shared support of tests, soak and benchmarks."""
