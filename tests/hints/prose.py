"""Hints that no test can follow, each with the reason."""

PROSE: dict[str, str] = {}
