"""`ais://` URLs: AIStore over its HTTP API; the proxy redirects to the node that has the object.

With `USE_AIS_FOR`, the buckets of other stores are read through AIStore and its cache.
"""

from __future__ import annotations

from urllib.parse import quote

from tarmac import environment
from tarmac.errors import UrlError
from tarmac.storage.objects import WebStore
from tarmac.storage.types import StorageOptions

_PROVIDERS = {
    "ais": "ais",
    "aws": "aws",
    "az": "azure",
    "azure": "azure",
    "gcp": "gcp",
    "gs": "gcp",
    "s3": "aws",
}
"""The provider in the terms of AIStore, by scheme."""


class AIStore(WebStore):
    """Objects behind the AIStore proxy that `AIS_ENDPOINT` names."""

    def resolve(self, url: str, storage: StorageOptions, /) -> tuple[str, StorageOptions]:
        scheme, _, rest = url.partition("://")
        provider = _PROVIDERS.get(scheme.lower())
        if provider is None:
            known = ", ".join(sorted(_PROVIDERS))
            what = f'AIStore does not support the scheme "{scheme[:20]}".'
            raise UrlError(
                what, url=url, hint=f"set USE_AIS_FOR to one or more of {known}, separated by colons."
            )
        endpoint = environment.aistore_endpoint()
        if not endpoint:
            raise UrlError("AIS_ENDPOINT is not set.", url=url, hint="export AIS_ENDPOINT=http://HOST:PORT")
        bucket, _, name = rest.partition("/")
        if not bucket or not name:
            raise UrlError(f"expected {scheme}://BUCKET/OBJECT.", url=url)
        if "://" not in endpoint:
            endpoint = f"http://{endpoint}"
        target = f"{endpoint.rstrip('/')}/v1/objects/{quote(bucket)}/{quote(name)}?provider={provider}"
        return target, storage
