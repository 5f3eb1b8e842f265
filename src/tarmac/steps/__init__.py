"""Process one sample at a time, for streams and for indexed datasets."""
