"""Runtime `ray`: a node is an actor of a placement group on a Ray cluster."""
