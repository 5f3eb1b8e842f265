"""The names of the webdataset library: `import tarmac.webdataset as wds`.

Submodules can be imported, too (`from tarmac.webdataset.filters import shuffle`). Programs that cannot be changed
run under `python -m tarmac.compat` instead.
"""

import sys

from tarmac.compat import alias_modules
from tarmac.compat.webdataset import *  # noqa: F403 - the names are listed there
from tarmac.compat.webdataset import __all__ as __all__
from tarmac.compat.webdataset import __version__ as __version__

sys.modules.update(alias_modules("webdataset", __name__))
