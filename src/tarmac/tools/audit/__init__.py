"""Audit the order in which a Loader reads samples."""
