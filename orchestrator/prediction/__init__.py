"""Predicts times on more nodes and other links, and says how far they are off. See docs/prediction.md."""
