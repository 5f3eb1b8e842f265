"""The names of the webdataset library: `import tarmac.webdataset as wds`.

Submodules can be imported, too (`from tarmac.webdataset.filters import shuffle`). Programs that cannot be changed
run under `python -m tarmac.compat` instead.
"""

import sys as _sys

from tarmac.compat import alias_modules as _alias_modules
from tarmac.compat.webdataset import *  # noqa: F403 - the names are listed there
from tarmac.compat.webdataset import __version__ as __version__

_sys.modules.update(_alias_modules("webdataset", __name__))
