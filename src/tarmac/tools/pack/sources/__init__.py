"""The sources of `pack`: one file per type of source, each of which registers its formats."""

from __future__ import annotations

from tarmac.tools.pack.sources import directory as directory
from tarmac.tools.pack.sources import hf as hf
from tarmac.tools.pack.sources import lmdb as lmdb
from tarmac.tools.pack.sources import recipe as recipe
from tarmac.tools.pack.sources import sqlite as sqlite
from tarmac.tools.pack.sources import table as table
from tarmac.tools.pack.sources import tfrecord as tfrecord
