"""Jobs: plan units of work, run them with an engine, and record what is done, so that a run can resume."""
