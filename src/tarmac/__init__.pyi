# The public names of tarmac, each on its own line: type checkers, editors and `__init__.py` read this list.
from tarmac import errors as errors
from tarmac.codecs.registry import register_codec as register_codec
from tarmac.downloading.verb import download as download
from tarmac.exact.dataset import Dataset as Dataset
from tarmac.exact.loader import BatchSampler as BatchSampler
from tarmac.exact.loader import Loader as Loader
from tarmac.exact.loader import To as To
from tarmac.exact.mix import Mix as Mix
from tarmac.indexing.manifest import Manifest as Manifest
from tarmac.indexing.manifest import read_manifest as read_manifest
from tarmac.jobs.report import Report as Report
from tarmac.limits import Limits as Limits
from tarmac.samples.naming import first_dot as first_dot
from tarmac.samples.naming import last_dot as last_dot
from tarmac.samples.reader import read as read
from tarmac.samples.shards import ShardWriter as ShardWriter
from tarmac.samples.writer import TarWriter as TarWriter
from tarmac.selecting.verb import select as select
from tarmac.steps.pictures import RandomResizedCrop as RandomResizedCrop
from tarmac.steps.pictures import Resize as Resize
from tarmac.steps.pictures import ResizeCenterCrop as ResizeCenterCrop
from tarmac.storage import Cache as Cache
from tarmac.storage import StorageOptions as StorageOptions
from tarmac.storage import register_scheme as register_scheme
from tarmac.stream.pipeline import DataPipeline as DataPipeline
from tarmac.stream.webdataset import WebDataset as WebDataset
from tarmac.stream.webloader import WebLoader as WebLoader
from tarmac.tar import TarOptions as TarOptions
from tarmac.tokens.combine import combine as combine
from tarmac.tokens.dataset import Tokens as Tokens
from tarmac.tokens.tokenize import tokenize as tokenize
from tarmac.tools.audit import audit as audit
from tarmac.tools.check.verb import check as check
from tarmac.tools.copy import copy as copy
from tarmac.tools.export import export as export
from tarmac.tools.index import index as index
from tarmac.tools.join import join as join
from tarmac.tools.map import map as map
from tarmac.tools.mappers.contract import Mapper as Mapper
from tarmac.tools.pack import pack as pack
from tarmac.tools.show.statistics import stats as stats
from tarmac.tools.show.verb import show as show
from tarmac.tools.sort import sort as sort

__version__: str
__all__: list[str]
