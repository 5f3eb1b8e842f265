"""Load a model by its name: `open_clip:NAME/PRETRAINED`, `sentence:NAME_OR_DIR`, `module:Class`, or an object."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import xxhash

from tarmac.embedding.models.contract import EmbeddingModel, GivenModel, encodes
from tarmac.errors import UsageError
from tarmac.extras import missing_package
from tarmac.jobs.outputs import sampled_digests
from tarmac.tools.map.fingerprint import arguments_digest
from tarmac.tools.map.functions import Function
from tarmac.tools.mappers.loading import load_object
from tarmac.tools.mappers.loading import set_up as call_setup

OPEN_CLIP, SENTENCE = "open_clip:", "sentence:"
FIELD = "model"
"""The argument that errors name."""


def load_model(source: Any) -> EmbeddingModel:
    """Return the model that a name stands for; call its `setup` before anything else."""
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else ""
    if name.startswith(OPEN_CLIP):
        from tarmac.embedding.models.openclip import OpenClip

        return OpenClip(name.removeprefix(OPEN_CLIP))
    if name.startswith(SENTENCE):
        from tarmac.embedding.models.sentence import SentenceModel

        return SentenceModel(name.removeprefix(SENTENCE))
    if name and ":" not in name:
        what = f"expected open_clip:NAME/PRETRAINED, sentence:NAME or module:Class, got {name!r}."
        raise UsageError(what, field=FIELD)
    model = load_object(source, FIELD)
    return model if isinstance(model, EmbeddingModel) else GivenModel(model)


def set_up(model: EmbeddingModel, device: str, kinds: tuple[str, ...] = ()) -> EmbeddingModel:
    """Set up a model and return it; raise UsageError if it cannot encode all of `kinds`, "images" or "texts"."""
    for kind in kinds:
        if not encodes(model, kind):
            raise UsageError(f"the model does not encode {kind}.", field=FIELD)
    call_setup(model, device, FIELD)
    dimension: Any = model.dimension
    if not isinstance(dimension, int) or dimension < 1:
        what = f"expected the number of numbers of a vector as `dimension` of the model, got {dimension!r}."
        raise UsageError(what, field=FIELD)
    return model


def absolute(source: Any) -> Any:
    """Return a model's name with absolute paths, since workers may run in another directory."""
    if not isinstance(source, str | os.PathLike):
        return source
    name = os.fspath(source)
    directory = name.removeprefix(SENTENCE)
    if directory != name and os.path.isdir(directory):
        return SENTENCE + os.path.abspath(directory)
    return os.path.abspath(name) if ".py:" in name else name


def model_name(source: Any) -> str:
    """Return the name of a model, as the manifest of embeddings records it."""
    if isinstance(source, str):
        return source
    kind = source if isinstance(source, type) else type(source)
    return f"{kind.__module__}:{kind.__qualname__}"


def fingerprint(source: Any) -> str:
    """Return what identifies a model in a ledger: its name, with a digest of its files or source if there are any."""
    name = str(source) if isinstance(source, str) else ""
    if name.startswith(SENTENCE) and os.path.isdir(directory := name.removeprefix(SENTENCE)):
        return f"{SENTENCE}{os.path.basename(directory)} {_digest(directory)}"
    if name.startswith(OPEN_CLIP) and os.path.isfile(file := name.partition("/")[2]):
        return f"{name.partition('/')[0]}/{os.path.basename(file)} {_joined(sampled_digests([file]))}"
    if name.startswith((OPEN_CLIP, SENTENCE)):
        return name
    return str(Function(name or _Shown(source)).options()["py"])


def has_changed(recorded: str, source: Any) -> bool:
    """Return whether a model has other code or files than the fingerprint that was recorded."""
    before, now = (each.partition(" version=")[0] for each in (recorded, fingerprint(source)))
    return bool(recorded) and before != now


class _Shown:
    """Has the name, the module and the version of a model, for its fingerprint, but can be called."""

    def __init__(self, model: Any) -> None:
        kind = model if isinstance(model, type) else type(model)
        self.__module__, self.__qualname__ = kind.__module__, kind.__qualname__
        given = "" if isinstance(model, type) else arguments_digest(model)
        self.version = f"{getattr(model, 'version', None)} {given}"

    def __call__(self, _sample: Any) -> None:
        """Do nothing."""


def _digest(directory: str) -> str:
    paths = [os.path.join(home, file) for home, _, files in os.walk(directory) for file in files]
    weights = [path for path in paths if not path.endswith(".md")]
    digests = sampled_digests(sorted(weights))
    return _joined({os.path.relpath(path, directory): digest for path, digest in digests.items()})


def _joined(digests: dict[str, str]) -> str:
    return xxhash.xxh3_64_hexdigest(repr(sorted(digests.items())).encode("utf-8", "surrogateescape"))


def check_installed(**packages: str) -> None:
    """Raise MissingExtra if a library is not installed; the values are the names of its distributions."""
    for library in packages:
        if importlib.util.find_spec(library) is None:
            raise missing_package(library, " ".join(packages.values()), "embed")
