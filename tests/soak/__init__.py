"""Soak: bring every topology up again and again, and count what does not end well."""
