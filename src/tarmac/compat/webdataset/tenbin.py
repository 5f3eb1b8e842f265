"""`webdataset.tenbin`: encode arrays as bytes."""

from __future__ import annotations

from tarmac.codecs.tenbin import decode_buffer, encode_buffer, load, read, save, write

__all__ = ["decode_buffer", "encode_buffer", "load", "read", "save", "write"]
