"""Assignments for courses, and the grading of submissions."""

from typing import Literal

# When students see a test on Gradescope.
Visibility = Literal["hidden", "after_due_date", "after_published", "visible"]
