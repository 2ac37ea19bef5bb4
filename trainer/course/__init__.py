"""Runs a student's code for the grader: the far end of orchestrator/course/. Imports no torch."""
