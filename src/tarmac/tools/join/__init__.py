"""Join samples with the fields of a table or of other shards."""

from tarmac.tools.join.verb import join as join

__all__ = ["join"]
