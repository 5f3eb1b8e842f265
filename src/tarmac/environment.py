"""The environment variables that tarmac reads, all in this file; docs/environment.md lists them.

Object stores have their own (`AWS_*`, `GOOGLE_*`, `AZURE_*`), read by obstore as usual.
"""

from __future__ import annotations

import os
from pathlib import Path

from tarmac.errors import BadSetting

__all__ = [
    "aistore_endpoint",
    "aistore_schemes",
    "cache_dir",
    "cache_size",
    "checks_ranks",
    "completion",
    "debug",
    "default_seed",
    "expandvars",
    "hub_endpoint",
    "hub_token",
    "environ_copy",
    "cache_home",
    "rank_and_world",
    "rendezvous",
    "restarts",
    "rewrite_rules",
    "s3_endpoint",
    "secure",
    "show_seed",
    "store_settings",
    "substitution",
    "wids_cache",
    "worker_and_workers",
]

_TRUE = frozenset(("1", "true", "yes", "on"))


def secure() -> bool:
    """Whether `TARMAC_SECURE` or `WDS_SECURE` asks for secure mode."""
    return any(os.environ.get(name, "").lower() in _TRUE for name in ("TARMAC_SECURE", "WDS_SECURE"))


def debug() -> bool:
    """Whether `TARMAC_DEBUG` asks the command line for the traceback of an error."""
    return os.environ.get("TARMAC_DEBUG", "").lower() in _TRUE


def completion() -> str | None:
    """Return what the completion script of a shell asks for: `_TARMAC_COMPLETE`."""
    return os.environ.get("_TARMAC_COMPLETE")


def substitution(name: str) -> str | None:
    """Return what `${NAME}` in a shard pattern stands for: the variable `WDS_NAME`."""
    return os.environ.get(f"WDS_{name}")


def expandvars(text: str) -> str:
    """Replace `$NAME` and `${NAME}` where they are set; only for text from code, never for data."""
    return os.path.expandvars(text)


def aistore_endpoint() -> str | None:
    """Return the address of the AIStore proxy for `ais://` URLs."""
    return os.environ.get("AIS_ENDPOINT")


def aistore_schemes() -> frozenset[str]:
    """Return the schemes whose URLs go to AIStore instead of their own store: `USE_AIS_FOR`, as `gs:s3`."""
    return frozenset(filter(None, os.environ.get("USE_AIS_FOR", "").lower().split(":")))


def rewrite_rules() -> list[tuple[str, str]]:
    """Return how URLs are rewritten: `GOPEN_REWRITE`, as `pattern=replacement;pattern=replacement`."""
    rules = []
    for number, rule in enumerate(filter(None, os.environ.get("GOPEN_REWRITE", "").split(";")), 1):
        pattern, equals, replacement = rule.partition("=")
        if not equals or not pattern:  # the rule itself is not shown: it may hold a password
            raise BadSetting(
                f"rule {number} of the environment variable GOPEN_REWRITE must be pattern=replacement"
            )
        rules.append((pattern, replacement))
    return rules


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


def environ_copy() -> dict[str, str]:
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


def default_seed() -> int:
    """Return the seed of everything random that was given none: `WDS_SEED`, or 0."""
    return _number("WDS_SEED", os.environ.get("WDS_SEED") or "0")


def show_seed() -> bool:
    """Whether `WDS_SHOW_SEED` asks to log the seeds of resampled shard lists."""
    return os.environ.get("WDS_SHOW_SEED", "").lower() in _TRUE


def cache_dir() -> str | None:
    """Return where remote shards are kept when the code does not say: `WDS_CACHE`."""
    return os.environ.get("WDS_CACHE") or None


def cache_size() -> int:
    """Return how many bytes of shards are kept when the code does not say: `WDS_CACHE_SIZE`, or -1, all."""
    return int(_decimal("WDS_CACHE_SIZE", os.environ.get("WDS_CACHE_SIZE") or "-1"))


def wids_cache() -> str | None:
    """Return where `wids.ShardListDataset` keeps remote shards when the code does not say: `WIDS_CACHE`."""
    return os.environ.get("WIDS_CACHE") or None


def cache_home() -> Path:
    """Return where tarmac keeps what it makes for itself: `TARMAC_HOME`, or `tarmac` in the user's cache."""
    home = os.environ.get("TARMAC_HOME")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home or f"{cache}/tarmac").expanduser()


def rank_and_world() -> tuple[int, int] | None:
    """Return which of how many processes this is, from `RANK` and `WORLD_SIZE`, if both are set."""
    return _pair("RANK", "WORLD_SIZE")


def checks_ranks() -> bool:
    """Whether ranks compare their shards and epochs; not if `TARMAC_CHECK_RANKS` is 0."""
    return os.environ.get("TARMAC_CHECK_RANKS", "1").lower() not in ("0", "false", "no", "off")


def rendezvous() -> tuple[str, int] | None:
    """Return where the ranks of a torch program meet: `MASTER_ADDR` and `MASTER_PORT`, if both are set."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    return (host, _number("MASTER_PORT", port)) if host and port else None


def restarts() -> str:
    """Return how often torchrun has restarted this program: `TORCHELASTIC_RESTART_COUNT`, or 0."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0"


def worker_and_workers() -> tuple[int, int] | None:
    """Return which of how many workers this is, from `WORKER` and `NUM_WORKERS`, if both are set."""
    return _pair("WORKER", "NUM_WORKERS")


def _pair(first: str, second: str) -> tuple[int, int] | None:
    index, count = os.environ.get(first), os.environ.get(second)
    return (_number(first, index), _number(second, count)) if index and count else None


def _decimal(name: str, text: str) -> float:
    """Accept 1e12 where a number of bytes is meant."""
    try:
        return float(text)
    except ValueError:
        raise BadSetting(f"the environment variable {name} must be a number, got {text[:40]!r}") from None


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadSetting(
            f"the environment variable {name} must be a whole number, got {text[:40]!r}"
        ) from None
