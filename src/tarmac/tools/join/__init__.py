"""Join samples with the fields of a table or other shards."""
