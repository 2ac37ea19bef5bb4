"""What a report compares: rows, groups of rows, baselines."""
