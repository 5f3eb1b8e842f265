"""All environment variables that tarmac reads (docs/environment.md lists them), and secure mode.

In secure mode, no URL may run a command, and no redirect may lead into a private network.
obstore reads the variables of object stores itself (`AWS_*`, `GOOGLE_*`, `AZURE_*`); storage/aws.py completes them.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from urllib.parse import urlsplit

from tarmac.errors import BadSetting

_TRUE = frozenset(("1", "true", "yes", "on"))
_enforced = False


def enforce_security(on: bool = True) -> None:
    """Turn secure mode on for this process. The environment can turn it on, too, but never off."""
    global _enforced
    _enforced = on


def is_secure() -> bool:
    """Return whether `enforce_security`, `TARMAC_SECURE` or `WDS_SECURE` has turned secure mode on."""
    variables = ("TARMAC_SECURE", "WDS_SECURE")
    return _enforced or any(os.environ.get(name, "").lower() in _TRUE for name in variables)


def allow_pickle() -> None:
    """Set `TARMAC_ALLOW_PICKLE`, for this process and those that it starts."""
    os.environ["TARMAC_ALLOW_PICKLE"] = "1"


def allows_pickle() -> bool:
    """Return whether `TARMAC_ALLOW_PICKLE` lets programs for the webdataset library load pickles."""
    return not is_secure() and os.environ.get("TARMAC_ALLOW_PICKLE", "").lower() in _TRUE


def debug() -> bool:
    """Return whether `TARMAC_DEBUG` makes the command line print the traceback of an error."""
    return os.environ.get("TARMAC_DEBUG", "").lower() in _TRUE


def completion() -> str | None:
    """Return what the completion script of a shell asks for: `_TARMAC_COMPLETE`."""
    return os.environ.get("_TARMAC_COMPLETE")


def substitution(name: str) -> str | None:
    """Return the value that replaces `${NAME}` in a shard pattern: the variable `WDS_NAME`."""
    return os.environ.get(f"WDS_{name}")


def expandvars(text: str) -> str:
    """Replace `$NAME` and `${NAME}` if they are set. Use it only for text from code, never for data."""
    return os.path.expandvars(text)


def aistore_endpoint() -> str | None:
    """Return the address of the AIStore proxy for `ais://` URLs."""
    return os.environ.get("AIS_ENDPOINT")


def aistore_schemes() -> frozenset[str]:
    """Return the schemes that are read through AIStore: `USE_AIS_FOR`, for example `gs:s3`."""
    return frozenset(filter(None, os.environ.get("USE_AIS_FOR", "").lower().split(":")))


def rewrite_rules() -> list[tuple[str, str]]:
    """Return the pairs of `GOPEN_REWRITE`: `pattern=replacement;pattern=replacement`."""
    rules = []
    for number, rule in enumerate(filter(None, os.environ.get("GOPEN_REWRITE", "").split(";")), 1):
        pattern, equals, replacement = rule.partition("=")
        if not equals or not pattern:  # the message omits the rule, which may contain a password
            raise BadSetting(f"expected pattern=replacement as rule {number} of GOPEN_REWRITE.")
        rules.append((pattern, replacement))
    return rules


def gopen_verbose() -> bool:
    """Return whether `GOPEN_VERBOSE` has the webdataset library's functions print what they open."""
    return os.environ.get("GOPEN_VERBOSE", "0") not in ("", "0")


def hub_endpoint() -> str:
    """Return the address of the Hugging Face hub for `hf://` URLs."""
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    check_endpoint("HF_ENDPOINT", endpoint)
    return endpoint.rstrip("/")


def hub_token() -> str | None:
    """Return the Hugging Face token from `HF_TOKEN`, or from the file of `huggingface-cli login`."""
    token = os.environ.get("HF_TOKEN")
    if token:
        return token
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface")
    try:
        return (home.expanduser() / "token").read_text("utf-8").strip() or None
    except (OSError, ValueError, RuntimeError):  # no such file, invalid text, no home directory
        return None


def environ_copy() -> dict[str, str]:
    """Return all variables, for a helper process."""
    return dict(os.environ)


def store_settings() -> tuple[tuple[str, str], ...]:
    """Return the variables that obstore reads; cached clients are replaced when they change."""
    return tuple(pair for pair in os.environ.items() if pair[0].startswith(("AWS_", "AZURE_", "GOOGLE_")))


def aws_files() -> tuple[Path, Path]:
    """Return the configuration file and the credentials file of the AWS SDK."""
    names = (("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials"))
    config, credentials = (Path(os.environ.get(name) or f"~/.aws/{file}") for name, file in names)
    try:
        return config.expanduser(), credentials.expanduser()
    except RuntimeError:  # no home directory
        return config, credentials


def check_endpoint(name: str, value: str) -> None:
    """Raise BadSetting unless an endpoint is the address of a server."""
    try:
        parts = urlsplit(value)
        valid = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        valid = False
    if not valid or set(value) & set(" \t\r\n"):
        example = value if value and "/" not in value and not set(value) & set(" \t\r\n@") else "HOST:PORT"
        what = f"{name}: the endpoint needs http:// or https:// and the name of a server."
        raise BadSetting(what, hint=f"http://{example} or https://{example}.")


def default_seed() -> int:
    """Return the default seed: `WDS_SEED`, or 0."""
    return _number("WDS_SEED", os.environ.get("WDS_SEED") or "0")


def has_seed() -> bool:
    """Return whether `WDS_SEED` sets the default seed."""
    return bool(os.environ.get("WDS_SEED"))


def show_seed() -> bool:
    """Return whether `WDS_SHOW_SEED` turns on logging of the seeds of resampled shard lists."""
    return os.environ.get("WDS_SHOW_SEED", "").lower() in _TRUE


def cache_dir() -> str | None:
    """Return the default cache directory: `WDS_CACHE`."""
    return os.environ.get("WDS_CACHE") or None


def cache_size() -> int:
    """Return the default size of the cache in bytes: `WDS_CACHE_SIZE`, or -1 for no limit."""
    return int(_decimal("WDS_CACHE_SIZE", os.environ.get("WDS_CACHE_SIZE") or "-1"))


def wids_cache() -> str | None:
    """Return the default cache directory of `wids.ShardListDataset`: `WIDS_CACHE`."""
    return os.environ.get("WIDS_CACHE") or None


def cache_home() -> Path:
    """Return the directory for indexes and other derived files: `TARMAC_HOME`, or `~/.cache/tarmac`."""
    home = os.environ.get("TARMAC_HOME")
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home or f"{cache}/tarmac").expanduser()


def rank_and_world() -> tuple[int, int] | None:
    """Return the rank and the number of ranks from `RANK` and `WORLD_SIZE`, if both are set."""
    return _pair("RANK", "WORLD_SIZE")


def checks_ranks() -> bool:
    """Return whether ranks compare their shards and epochs: yes, unless `TARMAC_CHECK_RANKS` is 0."""
    return os.environ.get("TARMAC_CHECK_RANKS", "1").lower() not in ("0", "false", "no", "off")


def rendezvous() -> tuple[str, int] | None:
    """Return the rendezvous address of torch.distributed: `MASTER_ADDR` and `MASTER_PORT`, if both are set."""
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    return (host, _number("MASTER_PORT", port)) if host and port else None


def restarts() -> str:
    """Return the number of restarts by torchrun: `TORCHELASTIC_RESTART_COUNT`, or 0."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0"


def lease_seconds() -> float:
    """Return the time after which a unit of a dead task is free for others: `TARMAC_LEASE_SECONDS`, by default 60."""
    seconds = _decimal("TARMAC_LEASE_SECONDS", os.environ.get("TARMAC_LEASE_SECONDS") or "60")
    if seconds <= 0:
        raise BadSetting(f"expected a positive number in TARMAC_LEASE_SECONDS, got {seconds}.")
    return seconds


def device() -> str | None:
    """Return the device of processes that no engine has assigned one: `TARMAC_DEVICE`, for example `cuda:1`."""
    return os.environ.get("TARMAC_DEVICE") or None


def visible_gpus() -> int:
    """Return how many GPUs this process may use: `CUDA_VISIBLE_DEVICES`, or what Slurm gave to its step or job."""
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        listed = os.environ.get(name)
        if listed is not None:  # CUDA stops at the first invalid number, and -1 means none
            names = [each.strip() for each in listed.split(",")]
            return next((count for count, each in enumerate(names) if each in ("", "-1")), len(names))
    return 0


def ray_address() -> str | None:
    """Return the address of the Ray cluster: `RAY_ADDRESS`."""
    return os.environ.get("RAY_ADDRESS") or None


def keep_ray_on_loopback() -> None:
    """Have a Ray runtime that this process starts listen on the loopback interface only; before ray is imported."""
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


def keep_tokenizers_single() -> None:
    """Have the tokenizers library use one thread: each core has a process, and threads do not survive a fork."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def limit_threads(count: int) -> None:
    """Have numeric libraries use this many threads, unless `OMP_NUM_THREADS` says how many; before they are loaded."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    os.environ["OMP_NUM_THREADS"] = str(count)
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(count)


def keep_torch_single() -> None:
    """Have torch, if it is loaded, compute in the calling thread: its own threads do not survive a fork."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


def spark_master() -> str | None:
    """Return the master of the Spark cluster: `SPARK_MASTER`, or `MASTER`, which spark-submit reads, too."""
    return os.environ.get("SPARK_MASTER") or os.environ.get("MASTER") or None


def worker_and_workers() -> tuple[int, int] | None:
    """Return the worker and the number of workers from `WORKER` and `NUM_WORKERS`, if both are set."""
    return _pair("WORKER", "NUM_WORKERS")


def _pair(first: str, second: str) -> tuple[int, int] | None:
    index, count = os.environ.get(first), os.environ.get(second)
    return (_number(first, index), _number(second, count)) if index and count else None


def _decimal(name: str, text: str) -> float:
    """Parse a number such as 1e12."""
    try:
        return float(text)
    except ValueError:
        raise BadSetting(f"expected a number in {name}, got {text[:40]!r}.") from None


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise BadSetting(f"expected an integer in {name}, got {text[:40]!r}.") from None
