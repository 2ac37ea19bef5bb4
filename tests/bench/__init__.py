"""Benchmarks that compare alternatives side by side. They are no tests: shared machines are too noisy."""
