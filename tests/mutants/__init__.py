"""Deliberate mistakes that the tests must notice, executed by `make mutants`."""
