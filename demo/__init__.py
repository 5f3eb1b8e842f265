"""The demo: make a small dataset of drawn pictures, pack it into shards, check it, read it back."""
