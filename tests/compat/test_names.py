"""Every public name of the webdataset library is here too, and takes at least the same arguments."""

from __future__ import annotations

import importlib
import inspect
import sys
from types import ModuleType
from unittest import mock

import webdataset

import tarmac
from tarmac.compat import MODULES

# What is left out on purpose, and why.
MISSING = {
    "cache.verbose_cache": "a variable without effect; verbose= logs",
    "gopen.PIPE": "of subprocess",
    "gopen.info": "text for messages on standard error; there are none",
    "multi.EOF": "inside the protocol between loader and workers",
    "multi.reader": "what a worker does",
    "multi.the_protocol": "inside the protocol between loader and workers",
    "pipeline.add_length_method": "exchanges the class of an object; with_length() sets a length instead",
    "shardlists.MSSource": "a record inside MultiShardSample; its fields are named after the YAML here",
    "shardlists.check_pid_is_running": "inside DirectoryShardList, which tells by locks",
    "shardlists.envlookup": "inside envsubst",
    "shardlists.get_pid_from_filename": "inside DirectoryShardList",
    "shardlists.without_last_extension": "inside DirectoryShardList",
    "tariterators.trace": "prints every file",
    "utils.ObsoleteException": "nothing is obsolete here: what raises it there works",
    "utils.deprecated": "marks functions of their own",
    "utils.lookup_sym": "inside safe_eval's use",
    "utils.obsolete": "marks functions of their own",
    "utils.safe_eval": "evaluates texts",
} | {
    f"tenbin.{name}": "inside the format; encode_buffer and decode_buffer are its interface"
    for name in vars(webdataset.tenbin)
    if name not in ("decode_buffer", "encode_buffer", "load", "read", "save", "write", "np", "struct", "sys")
    and not name.startswith("__")
}
# Arguments that are left out on purpose.
ARGUMENTS = {
    "autodecode.DecodingError": "an error says where and what; nobody but the library makes one",
    "filters._associate": "keywords are ignored there; here there is handler=",
    "filters.associate": "keywords are ignored there; here there is handler=",
}


def names(module):
    """What a module defines itself, and its plain values; private only where programs are known to use it."""
    found = {}
    for name, value in vars(module).items():
        private = name.startswith("_") and module.__name__ != "webdataset.filters"
        if private or name.startswith("__") or inspect.ismodule(value):
            continue
        own = getattr(value, "__module__", None) == module.__name__
        plain = isinstance(value, dict | list | str | bytes | int | float)
        if own or plain or module is webdataset:
            found[name] = value
    return found


# The library's MultiLoader imports zmq, which its own package does not ask for; its names need none.
with mock.patch.dict(sys.modules, {"zmq": ModuleType("zmq")}):
    CASES = [
        (name, item, value)
        for name in MODULES
        for item, value in names(importlib.import_module(f"webdataset.{name}")).items()
    ]


def test_every_name_of_the_package():
    ours = importlib.import_module("tarmac.compat.webdataset")
    assert {name for name in names(webdataset) if not hasattr(ours, name)} == set()
    assert callable(ours.gopen)
    assert {
        name for name in MODULES if name != "gopen" and not inspect.ismodule(getattr(ours, name))
    } == set()
    assert ours.__version__ == webdataset.__version__


def test_every_name_of_the_package_is_in_tarmac_itself():
    """`import tarmac as wds` is the other way to change over."""
    missing = {name for name in names(webdataset) if not hasattr(tarmac, name)}
    assert missing <= {"pytorch_weights_only"}


def test_every_name_of_the_modules():
    missing = {
        f"{module}.{item}"
        for module, item, _ in CASES
        if not hasattr(importlib.import_module(f"tarmac.compat.webdataset.{module}"), item)
    }
    assert missing == set(MISSING)


def parameters(value):
    try:
        return list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return None


def test_arguments_of_functions_and_classes():
    refused = {}
    for module, item, theirs in CASES:
        place = f"{module}.{item}"
        wanted = parameters(theirs) if callable(theirs) else None
        if wanted is None or place in MISSING or place in ARGUMENTS:
            continue
        ours = getattr(importlib.import_module(f"tarmac.compat.webdataset.{module}"), item)
        taken = parameters(ours)
        if type(theirs).__name__ == "RestCurried":
            wanted = wanted[1:]  # the data, which is not given when the stage is made
            if type(ours).__name__ == "RestCurried":
                taken = taken[1:]
        for why in refusals(wanted, taken):
            refused[place] = why
    assert refused == {}


def refusals(wanted, taken):
    """Say which of the arguments that are wanted are not taken, or not in the same way."""
    kinds = inspect.Parameter
    by_name = {parameter.name: parameter for parameter in taken}
    several = {parameter.kind for parameter in taken} & {kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD}
    first = 1 if wanted and wanted[0].name == "self" else 0
    for place, parameter in enumerate(wanted):
        found = by_name.get(parameter.name)
        if parameter.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD):
            if parameter.kind not in several and len(taken) <= len(wanted):
                yield f"{parameter} is not taken"
        elif found is not None:
            if parameter.kind is kinds.POSITIONAL_OR_KEYWORD and taken.index(found) != place:
                yield f"{parameter.name} is at another place"
            if parameter.kind is kinds.POSITIONAL_OR_KEYWORD and found.kind is kinds.KEYWORD_ONLY:
                yield f"{parameter.name} cannot be given by place"
            if parameter.default is not kinds.empty and found.default is kinds.empty:
                yield f"{parameter.name} must be given"
        elif place == first and len(taken) > place and taken[place].kind is not kinds.KEYWORD_ONLY:
            pass  # the one thing that a function is about is given by place, and may have another name
        elif kinds.VAR_KEYWORD not in several:
            yield f"{parameter.name} is not taken"
    more = (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    required = [p for p in taken if p.default is kinds.empty and p.kind not in more]
    if len(required) > len(wanted):
        yield "asks for more"


METHODS = [
    (kind, name)
    for kind in ("WebDataset", "DataPipeline", "WebLoader", "FluidWrapper", "TarWriter", "ShardWriter")
    for name, value in inspect.getmembers(getattr(webdataset, kind))
    if callable(value) and not name.startswith("_")
]
INTERNAL_METHODS = {
    "create_url_iterator": "a step of the constructor",
    "invoke": "called by the pipeline itself, without keywords",
    "tarmode": "a step of the constructor",
    "update_cache_info": "a step of the constructor",
    "register_datapipe_as_function": "of torch's old datapipes",
    "register_function": "of torch's old datapipes",
}


def test_methods():
    refused = {}
    for kind, name in METHODS:
        if name in INTERNAL_METHODS:
            continue
        theirs, ours = getattr(getattr(webdataset, kind), name), getattr(getattr(tarmac, kind), name, None)
        if ours is None:
            refused[f"{kind}.{name}"] = "is missing"
        else:
            for why in refusals(parameters(theirs), parameters(ours)):
                refused[f"{kind}.{name}"] = why
    assert refused == {}
