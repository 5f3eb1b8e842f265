"""Transform samples with a command or a Python function."""

from tarmac.tools.map.verb import map as map

__all__ = ["map"]
