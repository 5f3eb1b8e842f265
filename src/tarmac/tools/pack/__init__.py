"""Pack files, tables and generators into shards."""
