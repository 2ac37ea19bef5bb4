"""Assignments for courses, and the grading of submissions."""
