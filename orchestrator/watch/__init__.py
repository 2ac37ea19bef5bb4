"""A page that follows a sweep. It reads the files of the results directory, and changes nothing."""
