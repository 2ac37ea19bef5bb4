"""Models, one file each, as chains of named blocks; their layers, shapes and split points."""
