"""Replay: from the traces of a run's ranks to the time that a described cluster takes. Pure."""
