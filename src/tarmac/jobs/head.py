"""Compare the head of a ledger, which identifies its job, with that of a job that would continue it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from tarmac.errors import JobMismatch
from tarmac.jobs.entries import Entry
from tarmac.jobs.spelling import logical_options
from tarmac.jobs.statuses import changed_files, named_inputs
from tarmac.jobs.task import Task
from tarmac.storage.types import DEFAULT_STORAGE, StorageOptions

FORMAT = "tarmac-ledger-2"
EARLIER_FORMAT = "tarmac-ledger-1"
"""Its names and options begin with the directory of the output as it was spelt."""
_CODE = {"py": "function", "script": "script"}
"""Options that name code of the user, followed by hashes and a version, and what they are called."""
ARGUMENTS = "arguments="
"""What precedes the hash of the values that code was given, in such an option."""


def new_head(verb: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the head of a job, as JSON gives it back: tuples become lists."""
    head: dict[str, Any] = {"format": FORMAT, "verb": verb, "options": logical_options(options)}
    return json.loads(json.dumps(head))  # type: ignore[no-any-return]


def current_head(stored: dict[str, Any]) -> dict[str, Any]:
    """Return a stored head as this version would have written it."""
    if stored.get("format") != EARLIER_FORMAT:
        return stored
    return stored | {"format": FORMAT, "options": logical_options(stored.get("options", {}))}


def check_head(
    stored: dict[str, Any],
    head: dict[str, Any],
    url: str,
    task: Task | None = None,
    entries: Iterable[Entry] = (),
    storage: StorageOptions = DEFAULT_STORAGE,
) -> None:
    """Raise JobMismatch, with the differences, unless the stored head is that of this job.

    The head has the facts that stay the same for all copies of the inputs; what the inputs contain is compared unit by
    unit. The task also recognises the head that an earlier version would have written. The entries of the ledger
    tell which inputs have changed.
    """
    stored = current_head(stored)
    if stored in (head, _without_arguments(head)):
        return
    if task is not None and stored in (earlier := _earlier(head, task), _without_arguments(earlier)):
        return
    if stored.get("format") != FORMAT:
        raise JobMismatch("this is not a ledger of this version of tarmac.", url=url)
    old, new = stored.get("options", {}), head["options"]
    names = [name for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]
    if names == ["inputs"]:  # hashes, which tell a person nothing
        changed = named_inputs(changed_files((outcome for _, outcome in entries), storage))
        what = "the job was started with different inputs"
        raise JobMismatch(f"{what}: {changed} changed." if changed else f"{what}.", url=url)
    changes = [_change(name, old.get(name), new.get(name)) for name in names if name != "inputs"]
    changes = changes or [f"{stored.get('verb')} -> {head['verb']}"]
    raise JobMismatch(f"the job was started with different options: {'; '.join(changes)}.", url=url)


def _earlier(head: dict[str, Any], task: Task) -> dict[str, Any]:
    return new_head(head["verb"], task.earlier_options())


def _without_arguments(head: dict[str, Any]) -> dict[str, Any]:
    """Return a head as earlier versions wrote it: of functions they recorded the code alone."""
    options = {
        name: value.partition(f" {ARGUMENTS}")[0] if name in _CODE and isinstance(value, str) else value
        for name, value in head["options"].items()
    }
    return head | {"options": options}


def _change(name: str, old: Any, new: Any) -> str:
    """Return a difference in words; hashes of code are left out."""
    if name in _CODE and isinstance(old, str) and isinstance(new, str):
        before, after = old.split(" "), new.split(" ")
        versions = [[part for part in parts if part.startswith("version=")] for parts in (before, after)]
        if before[0] == after[0] and versions[0] != versions[1]:
            one, other = ((each[0].removeprefix("version=") if each else "none") for each in versions)
            return f"the {_CODE[name]} {new.split(' ')[0]} has another version, {one} -> {other}"
        code = [[part for part in parts if not part.startswith(ARGUMENTS)] for parts in (before, after)]
        if code[0] == code[1]:
            return f"the {_CODE[name]} {after[0]} has other arguments or captured values"
        if before[0] == after[0]:
            return f"the {_CODE[name]} {after[0]} has changed"
        return f"{_CODE[name]} {before[0]} -> {after[0]}"
    return f"{name} {old!r} -> {new!r}"
