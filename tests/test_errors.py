"""The error tree: drawn as it is, placed, picklable, without secrets."""

from __future__ import annotations

import pickle

import pytest

from tarmac import errors
from tarmac.display import redact
from tarmac.errors import TarmacError, TarmacWarning

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, TarmacError)]


def test_the_tree_in_the_docstring_is_the_tree():
    for kind in KINDS:
        assert kind.__name__ in errors.__doc__
        assert kind.__doc__
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, TarmacWarning):
            assert kind.__name__ in errors.__doc__


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_place_expectation_way_out_and_pickling(kind):
    error = kind("went wrong.", url="s3://b/x.tar", offset=0xA1C000, member=b"7.jpg", key="7", hint="again.")
    text = 's3://b/x.tar @ 0x00a1c000, member "7.jpg", sample "7": went wrong. Try: again.'
    assert str(error) == text
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == text
    assert str(kind("alone.", hint="")) == "alone."


def test_built_in_relatives():
    assert issubclass(errors.NotFound, FileNotFoundError)
    assert issubclass(errors.AccessDenied, PermissionError)
    assert issubclass(errors.TransferError, OSError)
    assert issubclass(errors.ArchiveError, ValueError)
    assert issubclass(errors.WriteError, OSError)


def test_at_adds_only_what_is_missing():
    error = errors.BadHeader("x.", url="first")
    error.at(url="second", key="k")
    assert (error.url, error.key) == ("first", "k")
    assert TarmacError("x.").location == ""


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("https://h/x.tar?X-Amz-Signature=SECRET&a=b", "SECRET"),
        ("see https://h/x.tar?sig=SECRET for more", "SECRET"),
        ("https://user:SECRET@h/x.tar", "SECRET"),
        ("https://SECRET@h/x", "SECRET"),
        ("Authorization: Bearer SECRETTOKEN", "SECRETTOKEN"),
        ("basic SECRETTOKEN=", "SECRETTOKEN"),
        ("az://c/x.tar?se=1&sig=SECRET%3D", "SECRET"),
        ("http://user:p@SECRET@host/x.tar", "SECRET"),
        ("pipe:curl -u me:SECRET http://h/x", "SECRET"),
        ("pipe:curl -H 'X-Api-Key: SECRET' http://h", "SECRET"),
    ],
)
def test_secrets_are_removed(text, secret):
    assert secret not in redact(text)
    assert secret not in str(errors.NotFound("x.", url=text))


def test_plain_names_stay_readable():
    for name in ("a?b.tar", "data#1.tar", "50%.tar", "s3://b/x.tar", "C:/x y.tar"):
        assert redact(name) == name
