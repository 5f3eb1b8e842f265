"""Members to samples and back: naming rule, grouping, reading, writing."""
