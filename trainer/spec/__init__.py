"""The specification of a run: its fields, the checks across them, and the registries of all components."""
