"""The environment of the machine decides nothing here."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS", "WDS_SEED", "WDS_SHOW_SEED"):
        monkeypatch.delenv(name, raising=False)
