"""Vectors of samples: compute them with a model, keep them beside their keys, read them by number or key."""
