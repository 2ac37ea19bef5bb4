"""How long runs take that were not made, and how far such predictions are off."""
