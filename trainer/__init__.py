"""What runs inside a node: data, model, strategy, and the bytes between the nodes."""
