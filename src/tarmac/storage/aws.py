"""Settings of the AWS SDK for S3: `StorageOptions.config`, then the environment, then a profile in `~/.aws`.

obstore reads the environment and asks the container or instance for credentials; profiles are added here.
Credentials that a profile must fetch first (single sign-on, roles, processes) come from boto3.
"""

from __future__ import annotations

import configparser
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tarmac import environment
from tarmac.errors import AccessDenied, BadSetting
from tarmac.extras import import_extra

Files = tuple[str, str]
"""The texts of the configuration file and of the credentials file."""
Values = Mapping[str, str]

_ALIASES = {
    "default_region": "region",
    "endpoint_url": "endpoint",
    "endpoint_url_s3": "endpoint",
    "token": "session_token",
}
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_FETCHED_FIRST = {"sso_session": "single sign-on", "sso_start_url": "single sign-on", "role_arn": "a role"}
_FETCHED_LAST = {"credential_process": "a credential process", "login_session": "a login session"}


@dataclass(frozen=True)
class Access:
    """How a bucket is accessed: what to add to the config, and where the credentials come from, in words."""

    config: dict[str, str]
    endpoint: str | None
    credentials: str
    provider: Callable[[], Any] | None = None


def read_files() -> Files:
    """Return the texts of the files of the SDK; one that does not exist is empty."""
    config, credentials = environment.aws_files()
    return _text(config), _text(credentials)


def _text(path: Path) -> str:
    try:
        text = path.read_text("utf-8")
        _parse(text)
    except BadSetting as error:
        raise error.at(url=str(path)) from None
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise BadSetting(f"the file of the AWS SDK cannot be read: {why}.", url=str(path)) from None
    return text


def plain(name: str) -> str:
    """Return the usual name of a setting: `AWS_ENDPOINT_URL`, `aws_endpoint` and `endpoint` are the same."""
    short = name.lower().removeprefix("aws_")
    return _ALIASES.get(short, short)


def resolve(config: Values, variables: Values, files: Files) -> Access:
    """Complete the config of a bucket from the environment and the profile, with the precedence of the SDK."""
    given = {plain(name): value for name, value in config.items()}
    name = variables.get("AWS_PROFILE") or variables.get("AWS_DEFAULT_PROFILE") or "default"
    profile, known = _profile(name, files)
    added: dict[str, str] = {}
    if "region" not in given and not (variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")):
        added |= {"region": profile["region"]} if profile.get("region") else {}
    endpoint, origin = _endpoint(given, variables, profile)
    if endpoint is not None:
        environment.check_endpoint(origin, endpoint)
        # The variable AWS_ENDPOINT_URL_S3 has precedence over `endpoint`, even that of the config.
        added["aws_endpoint_url_s3" if _ENDPOINTS[0] in variables else "endpoint"] = endpoint
    credentials = _given_credentials(given, variables)
    if credentials is not None:
        return Access(added, endpoint, credentials)
    if not known and name != "default":
        names = ", ".join(_profiles(files)) or "none"
        what = f'the profile "{name}" is missing in the files of the AWS SDK, which have: {names}.'
        raise BadSetting(
            what, hint=f"set AWS_PROFILE to one of these, or run aws configure --profile {name}."
        )
    source = f'the profile "{name}"'
    if kind := _fetched(profile):
        return Access(added, endpoint, source, functools.partial(_provider, name, kind))
    if profile.get("aws_access_key_id") and profile.get("aws_secret_access_key"):
        for key in ("access_key_id", "secret_access_key", "session_token"):
            added |= {key: profile[f"aws_{key}"]} if profile.get(f"aws_{key}") else {}
        return Access(added, endpoint, source)
    return Access(added, endpoint, "those of the container or instance")


def _endpoint(given: Values, variables: Values, profile: Values) -> tuple[str | None, str]:
    """Return the endpoint, and which setting it comes from."""
    if "endpoint" in given:
        return given["endpoint"], "endpoint in StorageOptions.config"
    for name in _ENDPOINTS:
        if name in variables:
            return variables[name], name
    ignored = variables.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true"
    return None if ignored else profile.get("endpoint_url"), "endpoint_url in the profile"


def _given_credentials(given: Values, variables: Values) -> str | None:
    """Return where the config or the environment has credentials, in words; None if they have none."""
    unsigned = given.get("skip_signature") or variables.get("AWS_SKIP_SIGNATURE") or ""
    if unsigned.lower() in ("1", "true", "yes", "on", "y"):
        return "none (skip_signature)"
    if "access_key_id" in given:
        return "StorageOptions.config"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        if variables.get(name):
            return f"{name} in the environment"
    return None


def _fetched(profile: Values) -> str | None:
    """Return how the credentials of a profile are fetched, or None if it contains them."""
    for key, kind in _FETCHED_FIRST.items():
        if profile.get(key):
            return kind
    if profile.get("aws_access_key_id"):
        return None
    return next((kind for key, kind in _FETCHED_LAST.items() if profile.get(key)), None)


def _provider(name: str, kind: str) -> Any:
    """Return a function that fetches credentials with boto3, and fetches them again before they expire."""
    boto3 = import_extra("boto3", "aws", f'the profile "{name}" uses {kind}')
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        provider = Boto3CredentialProvider(boto3.Session(profile_name=name))
        provider()
    except Exception as error:  # its text may contain the output of a command
        what = f'the profile "{name}" uses {kind}, which gave no credentials ({type(error).__name__}).'
        login = f"aws sso login --profile {name}; " if kind == "single sign-on" else ""
        hint = f"{login}aws sts get-caller-identity --profile {name} shows the reason."
        raise AccessDenied(what, hint=hint) from None
    return provider


@functools.lru_cache(maxsize=16)
def _profile(name: str, files: Files) -> tuple[Values, bool]:
    """Return the values of a profile, and whether it exists. The credentials file has precedence."""
    config, credentials = (_parse(text) for text in files)
    sections = [config.get(name, {}) if name == "default" else {}, config.get(f"profile {name}", {})]
    values = {
        key: value for section in (*sections, credentials.get(name, {})) for key, value in section.items()
    }
    services = config.get(f"services {values.get('services', '')}", {})
    endpoint = _nested(services.get("s3", "")).get("endpoint_url")
    if endpoint is not None:
        values["endpoint_url"] = endpoint
    if values.get("ignore_configured_endpoint_urls", "").lower() == "true":
        values.pop("endpoint_url", None)
    return values, name in _profiles(files)


def _profiles(files: Files) -> list[str]:
    config, credentials = (_parse(text) for text in files)
    listed = {name.removeprefix("profile ") for name in config if name == "default" or name[:8] == "profile "}
    return sorted(listed | {*credentials})


@functools.lru_cache(maxsize=16)
def _parse(text: str) -> dict[str, dict[str, str]]:
    """Return the sections of a file. Values are not interpolated: secrets may contain `%`."""
    parser = configparser.RawConfigParser(
        strict=False, default_section="", delimiters=("=",), empty_lines_in_values=False
    )
    try:
        parser.read_string(text)
    except configparser.Error as error:  # its text quotes lines, which may be secret
        lines = getattr(error, "errors", None) or [(getattr(error, "lineno", 0), "")]
        raise BadSetting(
            f"line {lines[0][0]} of this file of the AWS SDK is invalid.",
            hint="a line such as [default], or region = us-east-1.",
        ) from None
    return {" ".join(name.split()): dict(parser[name]) for name in parser.sections()}


def _nested(text: str) -> dict[str, str]:
    """Return the settings in the indented lines below a name."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): value.strip() for name, equals, value in pairs if equals}
