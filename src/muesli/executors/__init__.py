"""Running a suite: cut into jobs, a few at a time on this machine, or on a Ray cluster."""
