"""Transform samples with a command or a function."""
