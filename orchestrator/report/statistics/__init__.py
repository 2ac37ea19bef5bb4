"""Statistics of quantities over seeds: spreads and comparisons of spreads."""
