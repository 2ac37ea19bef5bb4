"""The samples: where they come from, who gets which, and proof of who got what."""
