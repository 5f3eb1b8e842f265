"""Stages, pipelines, and the fluent WebDataset: streams of samples from shards to batches."""
