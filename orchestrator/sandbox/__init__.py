"""Where code runs that is not trusted, students' and users': a process reached through one byte stream."""
