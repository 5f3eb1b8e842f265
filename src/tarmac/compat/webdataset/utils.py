"""`webdataset.utils`: helpers, and the switch `enforce_security`."""

from __future__ import annotations

import sys

from tarmac.compat.extras import guess_batchsize, repeatedly
from tarmac.compat.helpers import (
    compute_sample_weights,
    fnmatch_with_braces,
    glob_with_braces,
    identity,
    is_iterable,
    repeatedly0,
)
from tarmac.compat.switches import UtilsModule
from tarmac.runtime.seeds import make_seed
from tarmac.runtime.worker_info import pytorch_worker_info, pytorch_worker_seed
from tarmac.steps.stage import PipelineStage

__all__ = [
    "compute_sample_weights",
    "enforce_security",
    "fnmatch_with_braces",
    "glob_with_braces",
    "guess_batchsize",
    "identity",
    "is_iterable",
    "make_seed",
    "PipelineStage",
    "pytorch_worker_info",
    "pytorch_worker_seed",
    "repeatedly",
    "repeatedly0",
    "UtilsModule",
]

enforce_security: bool
sys.modules[__name__].__class__ = UtilsModule
