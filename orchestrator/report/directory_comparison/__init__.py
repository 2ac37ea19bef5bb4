"""Results directories side by side: the configurations that they have in common, and how these differ."""
