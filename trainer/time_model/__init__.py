"""The one time model: from what ranks do to the time that a described cluster takes. Imports no torch."""
