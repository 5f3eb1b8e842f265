"""Tokens: precompute them from shards, combine and pack them, and train on them."""
