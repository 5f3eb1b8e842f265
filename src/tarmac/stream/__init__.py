"""Door 1: any shards, from anywhere, front to back: lists, splits, shuffles, pipelines."""
