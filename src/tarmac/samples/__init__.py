"""Convert members to samples and back: naming, grouping, reading, writing."""
