"""Execute a sweep's runs one after the other: start, watch, and turn events into a result."""
