"""Download the pictures that tables of links name, into shards."""
