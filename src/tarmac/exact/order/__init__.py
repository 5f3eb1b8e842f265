"""The order of samples as arithmetic: bijections, windows, mixtures, epochs."""
