"""Secure mode as the webdataset library has it: what its functions reject, in the words that programs match.

It is stricter than tarmac's own: functions that open any URL reject local files, and torch files are not decoded. As
there, `WebDataset` reads local shards.
"""

from __future__ import annotations

from tarmac import environment
from tarmac.errors import UnsafeCodec, UnsafeUrl
from tarmac.storage import is_local, schemes

TORCH = "torch.loads is not allowed for security reasons when enforce_security is set."
PICKLE = "Unpickling is not allowed for security reasons when enforce_security is set."
_REWRITE = "rewrite_url: unsafe_gopen is False, cannot rewrite URLs using environment variables."
_PIPE = "gopen_pipe: unsafe_gopen is False, cannot open pipe URLs."
_LOCAL = "gopen: unsafe_gopen is False, cannot open local files."


def check_url(url: str, *, reject_local: bool = True) -> None:
    """Raise UnsafeUrl for a URL that secure mode rejects: rewritten, a command, or a local file."""
    if not environment.is_secure() or url == "-":
        return
    local = is_local(url)
    if local and not reject_local:
        return
    if environment.rewrite_rules():
        raise UnsafeUrl(_REWRITE, url=url, hint="unset GOPEN_REWRITE.")
    if local:
        raise UnsafeUrl(_LOCAL, url=url, hint="WebDataset, which reads local shards.")
    if schemes.scheme_of(url) == "pipe":
        raise UnsafeUrl(_PIPE, url=url)


def check_data(message: str) -> None:
    """Raise UnsafeCodec in secure mode."""
    if environment.is_secure():
        raise UnsafeCodec(message, hint="a json, npy or npz field.")
