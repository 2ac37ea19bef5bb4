"""The fault matrix: one table of faults with declared verdicts, executed by `make faults`."""
