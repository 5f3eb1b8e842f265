"""Where and how tests follow hints."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def one_job(monkeypatch):
    """Run verbs in this process alone: starting others takes longer than what these tests do."""
    monkeypatch.setattr("tarmac.tools.options.usable_cores", lambda: 1)


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Run in the directory of the test, so that hints such as x.tar work as they are."""
    monkeypatch.chdir(tmp_path)
