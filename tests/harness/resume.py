"""Stop anywhere, go on elsewhere: whatever has a state must continue from it exactly.

The rule, for an iterable with `state_dict` and `load_state_dict`: take the state after every step, restore
each into a fresh copy, and the rest of the items is the same. States are JSON of one shape, and a
resumed run can be stopped and resumed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, Protocol


class Stateful(Protocol):
    """What can be stopped and resumed."""

    def __iter__(self) -> Iterator[Any]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


def assert_resumes(make: Callable[[], Stateful], *, max_state_bytes: int = 64 << 10) -> int:
    """Check the rule on what `make` makes; return how many resumes were tried."""
    whole, states = _run(make())
    shape = _shape(states[0])
    for step, state in enumerate(states):
        text = json.dumps(state)
        assert len(text) <= max_state_bytes, f"the state after {step} items has {len(text)} bytes"
        assert _shape(state) == shape, f"the state after {step} items has another shape"
        rest, later = _resume(make, json.loads(text))
        assert rest == whole[step:], f"after {step} items: {rest[:3]}…, not {whole[step : step + 3]}…"
        if len(later) > 2:
            middle = len(later) // 2
            again, _ = _resume(make, json.loads(json.dumps(later[middle])))
            assert again == whole[step + middle :], f"a second resume, after {step} items, differs"
    return len(states)


def _run(source: Stateful) -> tuple[list[Any], list[dict[str, Any]]]:
    """All items, and the state before the first and after each."""
    states, items = [source.state_dict()], []
    for item in source:
        items.append(item)
        states.append(source.state_dict())
    return items, states


def _resume(make: Callable[[], Stateful], state: dict[str, Any]) -> tuple[list[Any], list[dict[str, Any]]]:
    fresh = make()
    fresh.load_state_dict(state)
    return _run(fresh)


def _shape(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _shape(value) for key, value in state.items()}
    return type(state).__name__
