"""Display of URLs, messages and names from data."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarmac.display import display_url, holds_secret, identity, redact, visible
from tarmac.errors import NotFound

SECRET = "s3cr3ts3cr3t"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("a.tar", "a.tar"),
        ("a?b#c d.tar", "a?b#c d.tar"),
        ("file:///a?b#c.tar", "file:///a?b#c.tar"),
        ("s3://b/a#1.tar", "s3://b/a#1.tar"),
        ("s3://key:SECRET@b/a.tar", "s3://…@b/a.tar"),
        ("hf://datasets/me/x@main/a.tar", "hf://datasets/me/x@main/a.tar"),
        ("az://c/x.tar?sig=SECRET", "az://c/x.tar?…"),
        ("http://h/a b'c\"d<e>.tar?x=SECRET y", "http://h/a b'c\"d<e>.tar?…"),
        ("http://u:p@SECRET@h/x.tar", "http://…@h/x.tar"),
        ("http://h/x.tar#SECRET", "http://h/x.tar#…"),
        ("http://h/x.tar?a#SECRET", "http://h/x.tar?…"),
        ("@http://u:SECRET@h/list.txt", "@http://…@h/list.txt"),
        ("a.tar::http://u:SECRET@h/list.txt", "a.tar::http://…@h/list.txt"),
        ("{a.tar,http://h/x?SECRET}", "{a.tar,http://h/x?…"),
        ("pipe:curl -u me:SECRET http://h", "pipe:curl …"),
        ("pipe:SECRET=x curl http://h", "pipe: …"),
        ("pipe:./run.sh", "pipe:./run.sh"),
        ("pipe:curl${IFS}SECRET", "pipe:curl …"),
    ],
)
def test_urls_are_displayed_without_secrets(url, shown):
    assert display_url(url) == shown
    assert holds_secret(url) == (url != shown)
    assert "SECRET" not in str(NotFound("x.", url=url))
    assert "SECRET" not in identity(url)
    assert identity(identity(url)) == identity(url)


LETTERS = st.text(st.characters(exclude_characters="/?#@", exclude_categories=["Cs"]), max_size=8)


@settings(max_examples=200, deadline=None)
@given(LETTERS, LETTERS, LETTERS, st.sampled_from(["http", "https", "s3", "gs", "az", "hf"]))
def test_secrets_in_any_context(before, behind, path, scheme):
    secret = f"{before}{SECRET}{behind}"
    for url in (
        f"{scheme}://u:{secret}@h/{path}",
        f"{scheme}://h/{path}?{secret}",
        f"http://h/{path}#{secret}",
    ):
        error = NotFound("gone.", url=url)
        assert SECRET not in f"{display_url(url)} {error} {error!r} {identity(url)}"
        assert identity(identity(url)) == identity(url)


def test_identities_are_unique():
    names = [f"http://h/a.tar?sig={number}" for number in range(100)]
    assert len({identity(name) for name in names}) == 100
    assert identity("s3://b/a.tar") == "s3://b/a.tar"


@pytest.mark.parametrize(
    "text",
    [
        "see http://h/a b.tar?sig=SECRET for more",
        "it said 'http://h/x?a='SECRET'' twice",
        "<http://u:SEC RET SECRET@h/x>",
        "http://h/x#SECRET!",
        "Authorization: Bearer SECRETTOKEN",
        "ran pipe:curl -u me:SECRET",
    ],
)
def test_secrets_in_text_are_redacted(text):
    assert "SECRET" not in redact(text)
    assert "SECRET" not in str(NotFound(text.replace("pipe:curl -u me:SECRET", ""), url="x"))


@pytest.mark.parametrize("text", ["a?b.tar", "is it s3://b/x.tar?", "50 % of s3://b/x.tar, sample #3", "a@b"])
def test_plain_text_is_not_redacted(text):
    assert redact(text) == text


HOSTILE = ["\x1b[31m", "\x07", "\n", "\r", "\x08", "\x7f", "\x9b31m", "\u202e", "\u2066", "\u2028", "\udc9b"]


@pytest.mark.parametrize("letters", HOSTILE, ids=ascii)
def test_control_characters_are_escaped(letters):
    assert visible(f"a{letters}b").isprintable()
    for error in (
        NotFound(f"quoting {letters}", hint=f"not {letters}"),
        NotFound("x.", url=letters, key=letters, member=letters.encode(errors="surrogateescape")),
    ):
        assert str(error).isprintable()
        assert repr(error).isprintable()
    assert visible(f"a\tb{letters}", keep="\t").startswith("a\tb")
