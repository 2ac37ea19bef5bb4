"""Predicts times on more nodes and other links, with intervals. See docs/prediction.md."""
