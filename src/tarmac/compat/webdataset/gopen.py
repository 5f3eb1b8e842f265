"""`webdataset.gopen`: URLs as files. The attribute `webdataset.gopen` is the function of that name."""

from __future__ import annotations

from tarmac.compat.gopen import Pipe, gopen, gopen_error, gopen_schemes, reader, rewrite_url, set_options
from tarmac.compat.gopen import open_url as gopen_ais
from tarmac.compat.gopen import open_url as gopen_curl
from tarmac.compat.gopen import open_url as gopen_file
from tarmac.compat.gopen import open_url as gopen_gsutil
from tarmac.compat.gopen import open_url as gopen_hf
from tarmac.compat.gopen import open_url as gopen_htgs
from tarmac.compat.gopen import open_url as gopen_pipe

__all__ = [
    "gopen",
    "gopen_ais",
    "gopen_curl",
    "gopen_error",
    "gopen_file",
    "gopen_gsutil",
    "gopen_hf",
    "gopen_htgs",
    "gopen_pipe",
    "gopen_schemes",
    "Pipe",
    "reader",
    "rewrite_url",
    "set_options",
]
