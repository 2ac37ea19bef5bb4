"""Layouts: the ways in which a model's training can be divided over nodes, and what each costs."""
