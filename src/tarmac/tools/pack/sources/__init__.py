"""What `pack` makes shards from: one file for each kind of source."""

from __future__ import annotations

from tarmac.tools.pack.sources.source import File, Item, Skipped, Source, Where

__all__ = ["File", "Item", "Skipped", "Source", "Where"]
