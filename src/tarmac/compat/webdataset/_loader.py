"""The first stage of a `WebLoader`, as a DataLoader of torch: `loader.pipeline[0].num_workers`."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from tarmac.stream.webloader import LoaderSource


class Loader(LoaderSource, DataLoader):  # type: ignore[misc]
    """Iterates as `LoaderSource`, which knows the positions of workers. Everything else is that of its DataLoader."""

    state_name = "LoaderSource"

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not set yet
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __setattr__(self, name: str, value: Any) -> None:
        loader = vars(self).get("loader")
        if loader is not None and name in vars(loader):
            raise ValueError(f"{name} cannot be changed; pass it to WebLoader")
        object.__setattr__(self, name, value)
