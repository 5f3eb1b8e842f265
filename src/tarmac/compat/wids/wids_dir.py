"""`wids.wids_dir`: a module without names, as in the wids library."""
