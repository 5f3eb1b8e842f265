"""Functions of images that are never called."""
