"""The module that `import webdataset` finds in a process spawned from one with tarmac.compat installed."""

import tarmac.compat

# This replaces the entry in sys.modules, which the import system then returns instead of this module.
tarmac.compat.install()
