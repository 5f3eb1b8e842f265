"""Door 2: indexed datasets, exact epochs, the Loader."""
