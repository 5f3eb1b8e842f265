"""The environment variables that tarmac reads."""

from __future__ import annotations

import pytest

from tarmac import environment


@pytest.mark.parametrize(
    ("value", "on"), [("1", True), ("true", True), ("Yes", True), ("0", False), ("", False)]
)
@pytest.mark.parametrize("name", ["TARMAC_SECURE", "WDS_SECURE"])
def test_secure(monkeypatch, name, value, on):
    monkeypatch.delenv("TARMAC_SECURE", raising=False)
    monkeypatch.delenv("WDS_SECURE", raising=False)
    assert not environment.is_secure()
    monkeypatch.setenv(name, value)
    assert environment.is_secure() is on


def test_debug(monkeypatch):
    monkeypatch.delenv("TARMAC_DEBUG", raising=False)
    assert not environment.debug()
    monkeypatch.setenv("TARMAC_DEBUG", "1")
    assert environment.debug()


def test_substitution_sees_only_variables_meant_for_it(monkeypatch):
    monkeypatch.setenv("WDS_ROOT", "/data")
    monkeypatch.setenv("SECRET", "x")
    assert environment.substitution("ROOT") == "/data"
    assert environment.substitution("SECRET") is None


def test_hub(monkeypatch, tmp_path):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "http://hub/")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert environment.hub_endpoint() == "http://hub"
    assert environment.hub_token() is None
    (tmp_path / "token").write_text("hf_file\n")
    assert environment.hub_token() == "hf_file"
    (tmp_path / "token").write_bytes(b"\xff\xfe")
    assert environment.hub_token() is None
    monkeypatch.setenv("HF_TOKEN", "hf_env")
    assert environment.hub_token() == "hf_env"
    monkeypatch.setenv("HF_ENDPOINT", "")
    assert environment.hub_endpoint() == "https://huggingface.co"


def test_endpoints(monkeypatch):
    monkeypatch.delenv("AIS_ENDPOINT", raising=False)
    assert environment.aistore_endpoint() is None
    monkeypatch.setenv("AIS_ENDPOINT", "http://b")
    assert environment.aistore_endpoint() == "http://b"


def test_rewriting_and_aistore(monkeypatch):
    monkeypatch.delenv("USE_AIS_FOR", raising=False)
    monkeypatch.delenv("GOPEN_REWRITE", raising=False)
    assert environment.aistore_schemes() == frozenset()
    assert environment.rewrite_rules() == []
    monkeypatch.setenv("USE_AIS_FOR", "gs::S3")
    assert environment.aistore_schemes() == {"gs", "s3"}
    monkeypatch.setenv("GOPEN_REWRITE", "a=b=c;d=;")
    assert environment.rewrite_rules() == [("a", "b=c"), ("d", "")]
