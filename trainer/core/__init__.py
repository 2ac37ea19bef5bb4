"""What everything in a node stands on: registry, context, events, clock, result, random numbers."""
