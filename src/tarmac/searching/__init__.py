"""Search vectors: build an index of nearest neighbours with a recall that was asked for, and find samples with it."""
