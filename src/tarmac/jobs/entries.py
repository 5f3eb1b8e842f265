"""Convert the outcomes of units to the entries of ledgers, and back."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, TypeAlias

from tarmac.display import identity
from tarmac.jobs.task import Outcome
from tarmac.storage import is_local

Entry: TypeAlias = tuple[str, Outcome]
"""The fingerprint of a unit's inputs, and its outcome."""
_IN_FACTS = {"companions": "beside", "removed": "removed", "sampled_digests": "marks", "content": "content"}
"""Fields of an outcome that the file format keeps in `facts`, and their names there; `details` is the rest."""
_COLUMNS = frozenset(field.name for field in fields(Outcome)) - {"inputs", "details", *_IN_FACTS}


def public_name(name: str) -> str:
    """Return the name of a unit or output without secrets.

    Only URLs of web servers contain secrets. They cannot be listed, so no ledger in them is read back.
    """
    return name if is_local(name) else identity(name)


def to_json(outcome: Outcome) -> dict[str, Any]:
    """Return the entry of an outcome."""
    values = asdict(outcome)
    facts = values.pop("details")
    for name, key in _IN_FACTS.items():
        if value := values.pop(name):
            facts[key] = value
    for files in (values["outputs"], facts.get("beside", {})):
        for url in list(files):
            files[public_name(url)] = files.pop(url)
    return values | {"facts": facts}


def from_json(entry: dict[str, Any]) -> Outcome:
    """Return the outcome of an entry."""
    facts = dict(entry.get("facts") or {})
    typed = {name: facts.pop(key) for name, key in _IN_FACTS.items() if key in facts}
    columns = {name: value for name, value in entry.items() if name in _COLUMNS}
    return Outcome(**columns, **typed, details=facts)
