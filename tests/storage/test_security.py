"""Secure mode: the environment can turn it on, never off."""

from __future__ import annotations

import pytest

from tarmac.storage import enforce_security, is_secure


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    monkeypatch.setattr("tarmac.environment._enforced", False)
    monkeypatch.delenv("TARMAC_SECURE", raising=False)
    monkeypatch.delenv("WDS_SECURE", raising=False)


def test_code_and_environment(monkeypatch):
    assert not is_secure()
    enforce_security()
    assert is_secure()
    monkeypatch.setenv("TARMAC_SECURE", "0")
    assert is_secure()
    enforce_security(False)
    assert not is_secure()
    monkeypatch.setenv("WDS_SECURE", "1")
    assert is_secure()
    enforce_security(False)
    assert is_secure()
