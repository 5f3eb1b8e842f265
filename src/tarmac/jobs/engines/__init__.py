"""Where the units of a job run: one small file for each kind of machine."""
