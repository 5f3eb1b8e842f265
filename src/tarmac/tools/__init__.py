"""What the shard verbs do, as library functions; the command line only parses and prints."""
