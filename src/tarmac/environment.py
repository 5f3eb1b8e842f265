"""The environment variables that tarmac reads, all in this file; docs/environment.md lists them.

Object stores have their own (`AWS_*`, `GOOGLE_*`, `AZURE_*`), read by obstore as usual.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = [
    "aistore_endpoint",
    "hub_endpoint",
    "hub_token",
    "inherited",
    "s3_endpoint",
    "secure",
    "store_settings",
    "substitution",
]

_TRUE = frozenset(("1", "true", "yes", "on"))


def secure() -> bool:
    """Whether `TARMAC_SECURE` or `WDS_SECURE` asks for secure mode."""
    return any(os.environ.get(name, "").lower() in _TRUE for name in ("TARMAC_SECURE", "WDS_SECURE"))


def substitution(name: str) -> str | None:
    """Return what `${NAME}` in a shard pattern stands for: the variable `WDS_NAME`."""
    return os.environ.get(f"WDS_{name}")


def aistore_endpoint() -> str | None:
    """Return the address of the AIStore proxy for `ais://` URLs."""
    return os.environ.get("AIS_ENDPOINT")


def hub_endpoint() -> str:
    """Return the address of the Hugging Face hub for `hf://` URLs."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def hub_token() -> str | None:
    """Return the Hugging Face token from `HF_TOKEN`, or from where the hub's own login keeps it."""
    token = os.environ.get("HF_TOKEN")
    if token:
        return token
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface")
    try:
        return (home.expanduser() / "token").read_text("utf-8").strip() or None
    except (OSError, ValueError, RuntimeError):  # no file, not text, no home directory
        return None


def inherited() -> dict[str, str]:
    """Return all variables, for a helper process that must see what this one sees."""
    return dict(os.environ)


def store_settings() -> tuple[tuple[str, str], ...]:
    """Return the variables that obstore reads, to tell when clients have to be made anew."""
    return tuple(pair for pair in os.environ.items() if pair[0].startswith(("AWS_", "AZURE_", "GOOGLE_")))


def s3_endpoint() -> str | None:
    """Return the S3 endpoint that obstore will use, to know whether it is plain http."""
    return (
        os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
        or os.environ.get("AWS_ENDPOINT")
    )
