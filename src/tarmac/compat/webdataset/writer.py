"""`webdataset.writer`: samples to shards."""

from __future__ import annotations

from tarmac.codecs.arrays import encode_npy as numpy_dumps
from tarmac.codecs.arrays import encode_npz as numpy_npz_dumps
from tarmac.codecs.arrays import encode_torch as torch_dumps
from tarmac.codecs.basic import cbor_dumps
from tarmac.codecs.basic import msgpack_dumps as mp_dumps
from tarmac.codecs.tenbin import encode_tenbin as tenbin_dumps
from tarmac.compat.helpers import (
    add_handlers,
    bytestr,
    encode_based_on_extension,
    encode_based_on_extension1,
    imageencoder,
    make_encoder,
    make_handlers,
)
from tarmac.compat.webdataset.codec_tables import encoders as default_handlers
from tarmac.compat.webdataset.shard_writers import ShardWriter, TarWriter

__all__ = [
    "add_handlers",
    "bytestr",
    "cbor_dumps",
    "default_handlers",
    "encode_based_on_extension",
    "encode_based_on_extension1",
    "imageencoder",
    "make_encoder",
    "make_handlers",
    "mp_dumps",
    "numpy_dumps",
    "numpy_npz_dumps",
    "ShardWriter",
    "TarWriter",
    "tenbin_dumps",
    "torch_dumps",
]
