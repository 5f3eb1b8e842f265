"""Jobs: one function over many shards, stopped anywhere and finished by running it again."""
