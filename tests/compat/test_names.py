"""`tarmac.webdataset` has every public name of the webdataset library, with at least the same arguments."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import subprocess
import sys
from types import ModuleType
from unittest import mock

import pytest
import webdataset

import tarmac.webdataset as wds

MODULES = [info.name for info in pkgutil.iter_modules(webdataset.__path__)]

# Names left out on purpose, with the reason.
MISSING = {
    "multi.EOF": "internal to the protocol between loader and workers",
    "multi.reader": "internal to the workers",
    "multi.the_protocol": "internal to the protocol between loader and workers",
    "tariterators.trace": "prints every file",
    "utils.safe_eval": "evaluates strings",
}
# Arguments left out on purpose, with the reason.
ARGUMENTS = {
    "autodecode.DecodingError": "only the library itself raises it",
    "filters._associate": "the library ignores keywords; tarmac has `handler`",
    "filters.associate": "the library ignores keywords; tarmac has `handler`",
}


def names(module):
    """Return the names that a module defines; private ones only in `filters`, where programs use them."""
    defined = {}
    for name, value in vars(module).items():
        private = name.startswith("_") and module.__name__ != "webdataset.filters"
        if private or name.startswith("__") or inspect.ismodule(value):
            continue
        own = getattr(value, "__module__", None) == module.__name__
        plain = isinstance(value, dict | list | str | bytes | int | float)
        if own or plain or module is webdataset:
            defined[name] = value
    return defined


# The library's MultiLoader imports zmq, which is not among its requirements.
with mock.patch.dict(sys.modules, {"zmq": ModuleType("zmq")}):
    CASES = [
        (name, item, value)
        for name in MODULES
        for item, value in names(importlib.import_module(f"webdataset.{name}")).items()
    ]


def submodule(name):
    return importlib.import_module(f"tarmac.webdataset.{name}")


def test_the_package_has_every_name():
    assert {name for name in names(webdataset) if not hasattr(wds, name)} == set()
    assert wds.__version__ == webdataset.__version__


def test_names_that_only_tarmac_exports_at_the_top():
    for name in ("DirectoryShardList", "default_collation_fn", "log_keys"):
        assert callable(getattr(wds, name)), name


def test_the_modules_have_every_name():
    missing = {f"{module}.{item}" for module, item, _ in CASES if not hasattr(submodule(module), item)}
    assert missing == set(MISSING)


def test_modules_have_the_names_that_they_import_from_each_other():
    missing = set()
    with mock.patch.dict(sys.modules, {"zmq": ModuleType("zmq")}):
        for name in MODULES:
            for item, value in vars(importlib.import_module(f"webdataset.{name}")).items():
                origin = value.__name__ if inspect.ismodule(value) else getattr(value, "__module__", None)
                if str(origin).startswith("webdataset") and not hasattr(submodule(name), item):
                    missing.add(f"{name}.{item}")
    assert missing <= set(MISSING)


@pytest.mark.parametrize("name", MODULES)
def test_submodules_are_attributes_and_can_be_imported(name):
    module = submodule(name)
    assert module is importlib.import_module(f"tarmac.compat.webdataset.{name}")
    if name != "gopen":  # as in the library, the function of that name
        assert getattr(wds, name) is module


def exported(module):
    """Return the names that `from module import *` binds."""
    bound = {}
    exec(f"from {module} import *", bound)
    return set(bound) - {"__builtins__"}


def test_star_imports():
    assert names(webdataset).keys() - exported("tarmac.webdataset") <= {"__version__"}
    assert {"sys", "alias_modules", "annotations"} & exported("tarmac.webdataset") == set()
    missing = set()
    for name in MODULES:
        theirs = {item for module, item, _ in CASES if module == name and not item.startswith("_")}
        missing |= {f"{name}.{item}" for item in theirs - exported(f"tarmac.webdataset.{name}")}
    assert missing == set(MISSING)


def test_import_statements_of_programs():
    code = """if True:
        import tarmac.webdataset as wds
        import tarmac.webdataset.filters
        from tarmac.webdataset.shardlists import split_by_node
        from tarmac.webdataset.gopen import gopen_schemes

        assert wds.shardlists.split_by_node is split_by_node is wds.split_by_node
        assert tarmac.webdataset.filters.shuffle is wds.shuffle
        assert wds.gopen_schemes is gopen_schemes and callable(wds.gopen)
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def parameters(value):
    try:
        return list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return None


def test_arguments_of_functions_and_classes():
    differences = {}
    for module, item, theirs in CASES:
        name = f"{module}.{item}"
        expected = parameters(theirs) if callable(theirs) else None
        if expected is None or name in MISSING or name in ARGUMENTS:
            continue
        ours = getattr(submodule(module), item)
        accepted = parameters(ours)
        if type(theirs).__name__ == "RestCurried":
            expected = expected[1:]  # the data, which is not an argument of the stage
            if type(ours).__name__ == "RestCurried":
                accepted = accepted[1:]
        for difference in incompatible(expected, accepted):
            differences[name] = difference
    assert differences == {}


def incompatible(expected, accepted):
    """Yield the expected arguments that are not accepted in the same way."""
    kinds = inspect.Parameter
    by_name = {parameter.name: parameter for parameter in accepted}
    variadic = {parameter.kind for parameter in accepted} & {kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD}
    first = 1 if expected and expected[0].name == "self" else 0
    for position, parameter in enumerate(expected):
        match = by_name.get(parameter.name)
        if parameter.kind in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD):
            if parameter.kind not in variadic and len(accepted) <= len(expected):
                yield f"{parameter} is not accepted"
        elif match is not None:
            if parameter.kind is kinds.POSITIONAL_OR_KEYWORD and accepted.index(match) != position:
                yield f"{parameter.name} is at another position"
            if parameter.kind is kinds.POSITIONAL_OR_KEYWORD and match.kind is kinds.KEYWORD_ONLY:
                yield f"{parameter.name} is keyword-only"
            if parameter.default is not kinds.empty and match.default is kinds.empty:
                yield f"{parameter.name} is required"
        elif (
            position == first
            and len(accepted) > position
            and accepted[position].kind is not kinds.KEYWORD_ONLY
        ):
            pass  # the main argument is passed by position and may have another name
        elif kinds.VAR_KEYWORD not in variadic:
            yield f"{parameter.name} is not accepted"
    required = [
        parameter
        for parameter in accepted
        if parameter.default is kinds.empty
        and parameter.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]
    if len(required) > len(expected):
        yield "more arguments are required"


METHODS = [
    (owner, name)
    for owner in ("WebDataset", "DataPipeline", "WebLoader", "FluidWrapper", "TarWriter", "ShardWriter")
    for name, value in inspect.getmembers(getattr(webdataset, owner))
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
    differences = {}
    for owner, name in METHODS:
        if name in INTERNAL_METHODS:
            continue
        theirs, ours = getattr(getattr(webdataset, owner), name), getattr(getattr(wds, owner), name, None)
        if ours is None:
            differences[f"{owner}.{name}"] = "is missing"
        else:
            for difference in incompatible(parameters(theirs), parameters(ours)):
                differences[f"{owner}.{name}"] = difference
    assert differences == {}
