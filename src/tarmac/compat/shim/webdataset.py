"""What `import webdataset` finds in a process that was spawned by one with tarmac.compat installed."""

import tarmac.compat

# The import system hands out what is in sys.modules afterwards, which is tarmac's package, not this file.
tarmac.compat.install()
