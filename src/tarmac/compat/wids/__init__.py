"""The names of the wids library 0.2.111, implemented by tarmac. `tarmac.compat.install` makes `import wids` find them.

`ShardListDataset` reads shards without index files. New programs use `tarmac.Dataset`.
"""

from tarmac.compat.wids import wids as wids
from tarmac.compat.wids import wids_cleanup as wids_cleanup
from tarmac.compat.wids import wids_decode as wids_decode
from tarmac.compat.wids import wids_dl as wids_dl
from tarmac.compat.wids import wids_lru as wids_lru
from tarmac.compat.wids import wids_mmtar as wids_mmtar
from tarmac.compat.wids import wids_specs as wids_specs
from tarmac.compat.wids import wids_tar as wids_tar
from tarmac.compat.wids.samplers import ChunkedSampler as ChunkedSampler
from tarmac.compat.wids.samplers import DistributedChunkedSampler as DistributedChunkedSampler
from tarmac.compat.wids.samplers import DistributedLocalSampler as DistributedLocalSampler
from tarmac.compat.wids.samplers import ShardedSampler as ShardedSampler
from tarmac.compat.wids.samplers import ShardListSampler as ShardListSampler
from tarmac.compat.wids.wids import IndexedTarSamples as IndexedTarSamples
from tarmac.compat.wids.wids import LRUShards as LRUShards
from tarmac.compat.wids.wids import ShardListDataset as ShardListDataset
