"""Indexes go to a directory of the test's own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TARMAC_HOME", str(tmp_path_factory.mktemp("home")))
