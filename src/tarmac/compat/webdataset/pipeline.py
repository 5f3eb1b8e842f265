"""`webdataset.pipeline`: a sequence of stages."""

from tarmac.stream.pipeline import DataPipeline as DataPipeline
