"""Check, compare and repair shards."""
