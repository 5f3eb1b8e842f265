"""`webdataset.writer`: write samples to shards."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import IO, Any, cast

from tarmac import storage
from tarmac.codecs import encode_field, find_encoder
from tarmac.codecs.arrays import encode_npy, encode_npz, encode_torch
from tarmac.codecs.basic import cbor_dumps as cbor_dumps
from tarmac.codecs.basic import msgpack_dumps
from tarmac.codecs.images import image_encoder
from tarmac.codecs.tenbin import encode_tenbin
from tarmac.compat.webdataset._security import check_url
from tarmac.compat.webdataset.autodecode import encoders
from tarmac.compat.webdataset.gopen import gopen as gopen
from tarmac.compat.webdataset.utils import identity, print_message
from tarmac.display import display_url
from tarmac.errors import CommitFailed, NotFound, UsageError
from tarmac.samples import shards, writer
from tarmac.samples.writer import SampleEncoder
from tarmac.storage import is_local, is_stream
from tarmac.storage.local import local_path
from tarmac.tar.writer import TarFormat

default_handlers = encoders
mp_dumps = msgpack_dumps
numpy_dumps = encode_npy
numpy_npz_dumps = encode_npz
tenbin_dumps = encode_tenbin
torch_dumps = encode_torch

_FORMATS: dict[object, TarFormat] = {
    None: "auto",
    tarfile.USTAR_FORMAT: "ustar",
    tarfile.GNU_FORMAT: "gnu",
    tarfile.PAX_FORMAT: "pax",
    "USTAR_FORMAT": "ustar",
    "GNU_FORMAT": "gnu",
    "PAX_FORMAT": "pax",
}


def _target(fileobj: str | os.PathLike[str] | IO[bytes]) -> dict[str, Any]:
    """Return the arguments for the target; a device or named pipe is opened, since it cannot be replaced."""
    if not isinstance(fileobj, str | os.PathLike):
        return {"target": fileobj}
    name = os.fspath(fileobj)
    check_url(name)
    if name == "-" or not is_local(name) or not os.path.exists(local_path(name)):
        return {"target": name}
    mode = os.stat(local_path(name)).st_mode
    if not (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)):
        return {"target": name}
    return {"target": open(local_path(name), "wb"), "_name": name, "_close": True}


def _native(encoder: SampleEncoder | None, mtime: float | None, format: str | int | None) -> dict[str, Any]:
    """Return the arguments that tarmac spells differently."""
    return {
        "encoder": False if encoder is None else encoder,
        "mtime": mtime or 0,
        "format": _FORMATS.get(format, cast("TarFormat", format)),
    }


class NoDirectory(CommitFailed, FileNotFoundError):
    """The directory of the target does not exist."""

    hint: str | None = "create the directory first."


class TarWriter(writer.TarWriter):
    """`tarmac.TarWriter` with the arguments and attributes of the webdataset library.

    `stream` is the given file, or what stands for the file of a given name: it has a method `write`. Devices and named
    pipes are written directly. Secure mode rejects local files and commands.
    """

    def __init__(
        self,
        fileobj: str | os.PathLike[str] | IO[bytes],
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o444,
        compress: bool | str | None = None,
        encoder: SampleEncoder | None = True,
        keep_meta: bool = False,
        mtime: float | None = None,
        format: str | int | None = None,
        **options: Any,
    ) -> None:
        options |= {"user": user, "group": group, "mode": mode, "compress": compress, "keep_meta": keep_meta}
        try:
            super().__init__(**_target(fileobj), **_native(encoder, mtime, format), **options)
        except CommitFailed as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise NoDirectory(error.what, url=error.url) from error
            raise
        self.user, self.group, self.mode = user, group, mode
        self.compress, self.keep_meta, self.mtime = compress, keep_meta, mtime
        self.encoder: Callable[[Any], Any] = make_encoder(False if encoder is None else encoder)
        self.stream: Any = self._sink if isinstance(fileobj, str | os.PathLike) else fileobj

    @property
    def own_fileobj(self) -> Any:
        """The file that the writer has opened and not yet closed, else None."""
        return None if self._closed or self.stream is not self._sink else self.stream

    @staticmethod
    def tarmode(fileobj: Any, compress: bool | str | None = None) -> str:
        """Return the mode in which the tarfile module would open the shard: `w|gz`."""
        name = fileobj if isinstance(fileobj, str) else ""
        compression = writer._compression(compress, name)
        return f"w|{compression or ''}"

    def write(self, obj: Mapping[str, Any]) -> int:
        """Append a sample and return its payload size."""
        return super().write(obj)


class ShardWriter(shards.ShardWriter):
    """`tarmac.ShardWriter` with the arguments and attributes of the webdataset library.

    The first shard is opened at once, so a writer without samples writes an empty shard, unless there is a shard of
    that name. `options` are the other arguments of `TarWriter`, and `index`.
    """

    def __init__(
        self,
        pattern: str,
        maxcount: int = 100_000,
        maxsize: float = 3e9,
        post: Callable[[str], object] | None = None,
        start_shard: int = 0,
        verbose: int = 1,
        opener: Callable[[str], IO[bytes]] | None = None,
        *,
        encoder: SampleEncoder | None = True,
        mtime: float | None = None,
        format: str | int | None = None,
        **options: Any,
    ) -> None:
        if options.get("index") and opener is not None:
            raise UsageError("`index` and `opener` are mutually exclusive.", field="index")
        self.verbose, self.opener = verbose, opener
        super().__init__(
            pattern,
            max_samples=maxcount,
            max_bytes=maxsize,
            on_shard=post,
            start_shard=start_shard,
            **_native(encoder, mtime, format),
            **options,
        )
        self.next_shard()

    def write(self, obj: Mapping[str, Any]) -> int:
        """Append a sample and return its payload size."""
        return super().write(obj)

    def _open(self, name: str) -> writer.TarWriter:
        if self.verbose:
            size = f"{self._bytes / 1e9:.1f} GB"
            print_message(f"# writing {display_url(name)} {self._samples} {size} {self.samples_written}")
        if self.opener is None:
            return TarWriter(name, **self._options)
        return TarWriter(self.opener(name), **self._options, _name=name, _close=True)

    def _log_shard(self, name: str) -> None:
        if self.verbose:
            super()._log_shard(name)

    def finish_shard(self) -> None:
        """Publish the current shard, if there is one. A shard without samples never replaces another."""
        if self._writer is not None and not self._samples and self.opener is None and self._is_taken():
            writer, self._writer = self._writer, None
            writer.abort()
        super().finish_shard()

    def _is_taken(self) -> bool:
        assert self._name is not None
        if is_stream(self._name):
            return False
        try:
            storage.stat(self._name, self._options["storage"])
        except NotFound:
            return False
        return True

    next_stream = shards.ShardWriter.next_shard
    finish = finish_shard
    maxcount = property(lambda self: self.max_samples)
    maxsize = property(lambda self: self.max_bytes)
    post = property(lambda self: self.on_shard)
    total = property(lambda self: self.samples_written)
    shard = property(lambda self: self._number)
    fname = property(lambda self: self._name)
    tarstream = property(lambda self: self._writer)
    count = property(lambda self: self._samples)
    size = property(lambda self: self._bytes)


def bytestr(data: Any) -> bytes:
    """Return bytes unchanged, and other values as the bytes of their string."""
    return data if isinstance(data, bytes) else str(data).encode("ascii")


def add_handlers(d: dict[str, Any], keys: str | Iterable[str], value: Any) -> None:
    """Set one encoder for several extensions."""
    d.update(dict.fromkeys(keys.split() if isinstance(keys, str) else keys, value))


def make_handlers() -> dict[str, Any]:
    """Return a copy of the table of all encoders."""
    return dict(default_handlers)


def imageencoder(image: Any, format: str = "PNG") -> bytes:
    """Encode an image."""
    name = format.upper()
    return image_encoder({"JPG": "JPEG", "TIF": "TIFF", "IMG": "PPM", "IMAGE": "PPM"}.get(name, name))(image)


def encode_based_on_extension1(data: Any, tname: str, handlers: Mapping[str, Any]) -> Any:
    """Encode the value of one field; values such as `__key__` are returned unchanged."""
    return data if tname.startswith("__") else encode_field(tname, data, find_encoder(tname, handlers), "")


def encode_based_on_extension(sample: Mapping[str, Any], handlers: Mapping[str, Any]) -> dict[str, Any]:
    """Encode the fields of a sample by their extensions."""
    return {name: encode_based_on_extension1(value, name, handlers) for name, value in sample.items()}


def make_encoder(spec: SampleEncoder) -> Callable[[Any], Any]:
    """Return the sample encoder for the `encoder` argument of `TarWriter`."""
    if spec is False or spec is None:
        return identity
    if spec is True or isinstance(spec, Mapping):
        return partial(encode_based_on_extension, handlers=default_handlers if spec is True else spec)
    if not callable(spec):
        raise ValueError(f"encoder must be True, False, a dictionary or a function, got {spec!r}")
    return spec
