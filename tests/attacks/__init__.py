"""Attacks on the promises of docs/security.md: one module per surface."""
