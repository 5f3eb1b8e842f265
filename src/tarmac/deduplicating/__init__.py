"""Find samples that are nearly the same, by their vectors or their texts."""
