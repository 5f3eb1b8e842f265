"""Write files that appear under their names only when they are complete, even where a library needs a path."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from tarmac.errors import WriteError
from tarmac.limits import MIB
from tarmac.storage import StorageOptions, WriteOptions, is_local, open_write, scheme_of
from tarmac.storage.local import LocalSink
from tarmac.tools.export.formats import SinkFile
from tarmac.tools.output import make_directory

_REPLACE = WriteOptions(overwrite=True)


@contextlib.contextmanager
def published_stream(url: str, storage: StorageOptions) -> Iterator[SinkFile]:
    """Yield a file that is written from start to end, and publish it unless an error occurs."""
    if is_local(url):
        make_directory(url)
    try:
        sink = open_write(url, storage, _REPLACE)
        try:
            yield SinkFile(sink)
        except BaseException:
            sink.abort()
            raise
        sink.commit()
    except WriteError as error:
        if scheme_of(url) == "-" and isinstance(error.__cause__, BrokenPipeError):
            raise error.__cause__ from None  # the reader has read enough
        raise


@contextlib.contextmanager
def published_path(url: str, storage: StorageOptions) -> Iterator[str]:
    """Yield the path of a hidden file beside the target, or of a temporary one, and publish it."""
    if not is_local(url):
        with tempfile.TemporaryDirectory(prefix="tarmac-") as folder:
            path = os.path.join(folder, "export")
            yield path
            with published_stream(url, storage) as file, open(path, "rb") as written:
                while chunk := written.read(MIB):
                    file.write(chunk)
        return
    make_directory(url)
    sink = _PathSink(url, _REPLACE)
    try:
        yield sink.path
    except BaseException:
        sink.abort()
        raise
    sink.commit()


class _PathSink(LocalSink):
    """A part file that a library writes to, by its path."""

    @property
    def path(self) -> str:
        """Return the path of the incomplete file."""
        return str(self._part)

    def commit(self) -> None:
        self._written = os.fstat(self._fd).st_size  # the sink has not seen the writes
        super().commit()
