"""What a report compares: rows, groups of rows, serial baselines, and their labels."""
