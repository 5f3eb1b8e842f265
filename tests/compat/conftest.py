"""compat is installed for a test and taken back after it."""

from __future__ import annotations

import sys

import pytest

import tarmac.compat


@pytest.fixture
def installed():
    """Make `import webdataset` find tarmac during a test."""
    tarmac.compat.install()
    try:
        yield sys.modules["webdataset"]
    finally:
        tarmac.compat.uninstall()
