"""Which sample when, as arithmetic: bijections, windows, mixtures, epochs."""
