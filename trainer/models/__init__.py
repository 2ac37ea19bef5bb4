"""Models, one file each: ordered lists of named blocks."""
