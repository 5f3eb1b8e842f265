"""Shared flags have one meaning, one spelling and one group on every verb."""

from __future__ import annotations

import json

import click
import pytest

from tarmac import Limits, Report
from tarmac.cli import VERBS, program
from tarmac.cli import types as flag_types
from tarmac.cli.command import GROUPS, print_report

CONTEXT = click.Context(program)
COMMANDS = {verb: program.get_command(CONTEXT, verb) for verb in VERBS}
SIMPLE = {verb: command for verb, command in COMMANDS.items() if not isinstance(command, click.Group)}


def options(verb):
    return {name: option for option in SIMPLE[verb].params for name in option.opts if name.startswith("-")}


def test_a_flag_has_the_same_meaning_on_every_verb():
    shared = {
        "--fields", "--drop-fields", "--missing", "--where", "--keys", "--slice", "--slice-shard", "--split", "--only",
        "--max-samples", "--max-bytes", "--rekey", "--compress", "--index", "--post-cmd", "--delete-after",
        "--on-error", "--dry-run", "--allow-exec", "--cache", "--storage", "--limits", "--tar", "--split-name",
        "--repeated",
    }  # fmt: skip
    for name in shared:
        # The conditions of select are SQL: it reads tables, not samples.
        verbs = [verb for verb in SIMPLE if name in options(verb) and (verb, name) != ("select", "--where")]
        meanings = {(options(verb)[name].help, options(verb)[name].group) for verb in verbs}
        assert len(meanings) == 1, f"{name}: {meanings}"


def test_every_flag_is_explained_in_a_group():
    for verb in SIMPLE:
        for name, option in options(verb).items():
            if name != "--help":
                assert option.help.endswith((".", "]")), f"{verb} {name}"
                assert option.group in GROUPS


def test_every_verb_reports_as_json():
    for verb in SIMPLE:
        assert "--json" in options(verb), verb


def test_short_names_are_the_same_everywhere():
    short = {}
    for verb in SIMPLE:
        for name, option in options(verb).items():
            if len(name) == 2:
                short.setdefault(name, set()).add(max(option.opts, key=len))
    assert all(len(names) == 1 for names in short.values()), short


def test_all_numbers_but_seeds_take_units():
    for verb in SIMPLE:
        for name, option in options(verb).items():
            seed = name == "--seed" or (verb, name) == ("select", "--shuffle")
            assert seed or not isinstance(option.type, click.types.IntParamType), f"{verb} {name}"


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        ("--tar", "end=foo", r"\bend: .*'foo'"),
        ("--storage", "retries=-3", r"\bretries: .*'-3'"),
        ("--storage", "idle=60", "'idle'"),
    ],
)
def test_invalid_settings_give_the_reason(flag, value, reason):
    with pytest.raises(click.BadParameter, match=reason):
        SIMPLE["copy"].make_context("copy", ["x.tar", "-o", "y.tar", flag, value])


@pytest.mark.parametrize(
    ("parser", "text", "value"),
    [
        ("COUNT", "1e4", 10_000),
        ("COUNT", "10_000", 10_000),
        ("SIZE", "100MB", 100_000_000),
        ("SIZE", "2 GiB", 2 << 30),
        ("SIZE", "1.5k", 1500),
        ("NUMBER", "0", 0),
        ("SECONDS", "2.5", 2.5),
        ("SLICE", "100:200", slice(100, 200)),
        ("SLICE", "1::10", slice(1, None, 10)),
        ("SLICE", "-3:", slice(-3, None)),
        ("SLICE", "12:13", slice(12, 13)),
        ("SLICE", "-1:", slice(-1, None)),
        ("NAMES", "a, b", ["a", "b"]),
        ("FIELDS", "img=jpg|png,cls", {"img": ["jpg", "png"], "cls": ["cls"]}),
        ("COLUMNS", "caption=txt,cls", {"caption": "txt", "cls": "cls"}),
        ("SPLIT", "train=0.9,val=0.1", {"train": 0.9, "val": 0.1}),
    ],
)
def test_values(parser, text, value):
    assert getattr(flag_types, parser).convert(text, None, None) == value


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        *(("SIZE", text) for text in ("", "x", "-5M", "5X", "0", "1.5")),
        *(("SECONDS", text) for text in ("", "0", "-1", "nan", "x")),
        *(("SLICE", text) for text in ("", "a:b", "1:2:3:4", "1:x", "12", "-1")),
        *(("FIELDS", text) for text in ("=jpg", "a=", "jpg|", "a=x,a=y", "a=x|", "")),
        *(("COLUMNS", text) for text in ("", "a=", "a,a")),
        *(("SPLIT", text) for text in ("train=x", "train")),
        ("NAMES", "a,,b"),
    ],
)
def test_invalid_values(parser, text):
    with pytest.raises(click.BadParameter, match=r"expected|named|given"):
        getattr(flag_types, parser).convert(text, None, None)


def test_settings():
    limits = flag_types.settings("Limits")
    assert limits.convert("member_bytes=4GiB,shards=1e3", None, None) == Limits(
        member_bytes=4 << 30, shards=1000
    )
    assert flag_types.settings("TarOptions").convert("concatenated=true", None, None).concatenated
    for text in ("nope=1", "member_bytes=x", "member_bytes"):
        with pytest.raises(click.BadParameter):
            limits.convert(text, None, None)


def test_reports(capsys):
    report = Report("copy", 2, 2, read=5, written=4, failed=1, errors=["k: broken"])
    with pytest.raises(click.exceptions.Exit) as done:
        print_report(report, as_json=False)
    captured = capsys.readouterr()
    assert (done.value.exit_code, captured.out) == (1, "")
    assert "FAILED k: broken" in captured.err
    with pytest.raises(click.exceptions.Exit):
        print_report(report, as_json=True)
    assert json.loads(capsys.readouterr().out)["failed"] == 1
