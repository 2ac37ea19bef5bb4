"""What maintainers run in a checkout; the wheel does not contain it."""
