"""Results on disk: the records of a run and where they are stored."""
