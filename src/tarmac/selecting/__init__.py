"""Tables of links and captions: filter, join, deduplicate, sample and shuffle rows with DuckDB or Spark."""
