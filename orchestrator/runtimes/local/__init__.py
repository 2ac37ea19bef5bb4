"""Runtime `local`: nodes are processes of this machine."""
