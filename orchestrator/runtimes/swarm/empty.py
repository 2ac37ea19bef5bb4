"""In place of an empty file: Swarm distributes only files with content."""
