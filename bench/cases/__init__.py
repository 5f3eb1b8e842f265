"""The cases, a file for each subject."""
