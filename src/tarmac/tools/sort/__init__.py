"""Sort samples in bounded memory."""

from tarmac.tools.sort.verb import sort as sort

__all__ = ["sort"]
