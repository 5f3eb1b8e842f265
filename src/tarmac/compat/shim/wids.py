"""The module that the first `import wids` finds after tarmac.compat was installed, also in spawned processes."""

import tarmac.compat

# This replaces the entry in sys.modules, which the import system then returns instead of this module.
tarmac.compat.install()
tarmac.compat.install_wids()
