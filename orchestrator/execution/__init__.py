"""Running a sweep: one run after the other, from launch plan to outcome."""
