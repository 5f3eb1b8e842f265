"""`hf://` URLs: files of datasets and models on the Hugging Face hub, over https with the user's token."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import quote, unquote

from tarmac import environment
from tarmac.errors import UnsupportedScheme, UrlError
from tarmac.storage.objects import WebStore
from tarmac.storage.types import Sink, StorageOptions, WriteOptions

_FORM = re.compile(
    r"hf://(?P<type>(?:datasets|models|spaces)/)?"
    r"(?P<repo>(?!(?:datasets|models|spaces)/)[^/@]+/[^/@]+)(?:@(?P<revision>[^/]+))?/(?P<path>.+)"
)


class HubStore(WebStore):
    """Files on the Hugging Face hub, read-only."""

    def resolve(self, url: str, storage: StorageOptions, /) -> tuple[str, StorageOptions]:
        match = _FORM.fullmatch(url)
        if match is None:
            raise UrlError("expected hf://datasets/ORG/NAME[@REVISION]/PATH.", url=url)
        repo = match["repo"] if match["type"] in (None, "models/") else match["type"] + match["repo"]
        revision = quote(unquote(match["revision"] or "main"), safe="")
        target = f"{environment.hub_endpoint()}/{repo}/resolve/{revision}/{quote(match['path'])}"
        token = environment.hub_token()
        if token is not None and "authorization" not in map(str.lower, storage.headers):
            storage = replace(storage, headers={**storage.headers, "Authorization": f"Bearer {token}"})
        return target, storage

    def open_write(self, url: str, storage: StorageOptions, write: WriteOptions, /) -> Sink:
        raise UnsupportedScheme("hf:// URLs are read-only.", url=url, hint="write locally, then `hf upload`.")
