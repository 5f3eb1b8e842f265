"""Indexed datasets, exact epochs and the Loader."""
