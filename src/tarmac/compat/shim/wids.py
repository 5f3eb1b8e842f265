"""What `import wids` finds where tarmac.compat is installed, also in processes that were spawned."""

import tarmac.compat

# As beside it: afterwards tarmac's package is in sys.modules, and the import system hands out that.
tarmac.compat.install()
tarmac.compat.install_wids()
