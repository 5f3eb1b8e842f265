"""Sort samples in bounded memory."""

from tarmac.tools.sort.sort import SortArgs as SortArgs
from tarmac.tools.sort.sort import sort as sort

__all__ = ["sort", "SortArgs"]
