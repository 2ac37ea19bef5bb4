"""One rank's training: session, replica, batches, evaluation, metrics and checkpoints."""
