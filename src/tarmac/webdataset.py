"""Provide the names of the webdataset library: `import tarmac.webdataset as wds`.

Programs that must not change at all run under `python -m tarmac.compat` instead.
"""

from tarmac.compat.webdataset import *  # noqa: F403 - the list of names is kept there
from tarmac.compat.webdataset import __all__ as __all__
