"""List shards, and split them between readers."""
