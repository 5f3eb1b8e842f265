"""`webdataset.extradatasets`: wrap datasets: mock data, lengths, epochs, repetition."""

# The names are those of the webdataset library.
# ruff: noqa: N801

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tarmac.compat.webdataset import utils as utils
from tarmac.compat.webdataset.utils import PipelineStage as PipelineStage
from tarmac.compat.webdataset.utils import repeatedly as repeat_items
from tarmac.steps.stage import Epoch, as_stage
from tarmac.stream.epochs import StreamSource
from tarmac.stream.length import add_length

_END = object()


class MockDataset(StreamSource):
    """Yield the same sample `length` times, for tests and benchmarks of later stages."""

    def __init__(self, sample: Any, length: int) -> None:
        super().__init__()
        self.sample = sample
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        return (self.sample for _ in range(self.length))


class with_length(StreamSource):
    """A dataset with a value for `len()`, which does not change the number of items."""

    def __init__(self, dataset: Iterable[Any], length: int) -> None:
        super().__init__()
        self.dataset = dataset
        self.length = length

    def begin_epoch(self, epoch: Epoch) -> None:
        """Pass the epoch on to the dataset."""
        as_stage(self.dataset).begin_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)

    def __len__(self) -> int:
        return self.length


class with_epoch(with_length):
    """A dataset split into epochs of `length` items. Each epoch continues where the previous one stopped.

    The dataset is restarted when it ends. A copy in another process starts at its beginning.
    """

    not_resumable = "each epoch starts where the previous one stopped, which a state does not record"

    def __init__(self, dataset: Iterable[Any], length: int) -> None:
        super().__init__(dataset, length)
        self._items: Iterator[Any] = iter(())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_items": iter(())}

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.length):
            item = next(self._items, _END)
            if item is _END:
                self._items = iter(self.dataset)
                item = next(self._items, _END)
            if item is _END:  # the dataset is empty
                return
            yield item


class repeatedly(StreamSource):
    """A dataset that repeats another one; `length` is the value of `len()`."""

    def __init__(
        self,
        source: Iterable[Any],
        nepochs: int | None = None,
        nbatches: int | None = None,
        length: int | None = None,
    ) -> None:
        super().__init__()
        self.source = source
        self.nepochs = nepochs
        self.nbatches = nbatches
        self.length = length
        if length is not None:
            add_length(self)

    def begin_epoch(self, epoch: Epoch) -> None:
        """Pass the first epoch on to the dataset."""
        as_stage(self.source).begin_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return repeat_items(self.source, self.nepochs, self.nbatches)
