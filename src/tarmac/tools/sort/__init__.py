"""Sort samples in bounded memory."""

from tarmac.tools.sort.sort import sort as sort

__all__ = ["sort"]
