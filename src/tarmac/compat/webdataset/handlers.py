"""`webdataset.handlers`: functions that decide whether to continue after an error."""

from tarmac.steps.handlers import ignore_and_continue as ignore_and_continue
from tarmac.steps.handlers import ignore_and_stop as ignore_and_stop
from tarmac.steps.handlers import reraise_exception as reraise_exception
from tarmac.steps.handlers import warn_and_continue as warn_and_continue
from tarmac.steps.handlers import warn_and_stop as warn_and_stop
