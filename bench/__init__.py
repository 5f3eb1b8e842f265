"""The bench: one command measures tarmac beside its peers, in the same run and on the same data."""
