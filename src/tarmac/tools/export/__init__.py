"""Samples to files that other programs read: one file for each format."""
