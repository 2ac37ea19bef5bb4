"""A run's specification: its fields, the checks on them, and the registries of all components."""
