"""Every option of img2dataset is in the table for its users, and every command of that table runs."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from downloading.links import samples, table
from harness.web import NOT_HERE, Answer, picture, serving
from tarmac.cli import main
from tools.export.tfrecords import records

pytestmark = pytest.mark.processes
PAGE = Path(__file__).parents[2] / "docs" / "download.md"
ROWS = re.findall(
    r"^\| (`\w+.*?`) \| (.*) \|$", PAGE.read_text().partition("## For users of img2dataset")[2], re.MULTILINE
)
OPTIONS = set(
    """
url_list image_size output_folder processes_count resize_mode resize_only_if_bigger upscale_interpolation
downscale_interpolation encode_quality encode_format skip_reencode output_format input_format url_col caption_col
bbox_col thread_count number_sample_per_shard extract_exif save_additional_columns timeout enable_wandb wandb_project
oom_shard_count compute_hash verify_hash distributor subjob_size retries disable_all_reencoding min_image_size
max_image_area max_aspect_ratio incremental_mode max_shard_retry user_agent_token disallowed_header_directives
ignore_ssl_certificate
""".split()  # noqa: SIM905 - as their source lists them
)
EVERY = [(theirs, flags) for theirs, ours in ROWS for flags in re.findall(r"^`([^`]*)`", ours)]
EXPORTS = [flags for _, flags in EVERY if flags.startswith("tarmac export ")]
COMMANDS = [(theirs, flags) for theirs, flags in EVERY if flags not in EXPORTS]


def test_every_option_is_in_the_table():
    named = {name for theirs, _ in ROWS for name in re.findall(r"`(\w+)", theirs)}
    assert named == OPTIONS
    assert len(COMMANDS) > 30


@pytest.fixture(scope="module")
def web():
    def script(request):
        return Answer(
            picture(1, 320, 200), headers={"X-Robots-Tag": "noindex"} if "noindex" in request.path else {}
        )

    with serving(lambda request: NOT_HERE if request.path == "/robots.txt" else script(request)) as server:
        yield server


SIZES = {"border": (256, 256), "keep_ratio_largest": (256, 160), "center_crop": (256, 256), "no": (320, 200)}


@pytest.mark.parametrize(("theirs", "flags"), COMMANDS, ids=[flags for _, flags in COMMANDS])
def test_commands_run(theirs, flags, web, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = "/noindex" if "x-robots-tag" in flags else "/x"
    links = [web.url("127.0.0.1", path)] * 3
    md5 = hashlib.md5(picture(1, 320, 200)).hexdigest()
    table(
        tmp_path / "links.parquet", links, TEXT=["a", "b", "c"], similarity=[0.3] * 3, md5=[md5] * 3,
        boxes=[[[0.1, 0.1, 0.5, 0.5]]] * 3,
    )  # fmt: skip
    given = shlex.split(flags)
    if "spark" in flags:
        monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    output = [] if "-o" in given else ["-o", "out/{i:05d}.tar"]
    source = [] if "links.parquet" in given else ["links.parquet"]
    with pytest.raises(SystemExit) as done:
        main(["download", *source, *output, *given, "--allow-networks", "127.0.0.0/8"])
    assert not done.value.code, capsys.readouterr().err
    first, *_ = written = samples(tmp_path / "out")
    assert len(written) == 3
    facts = json.loads(first["json"])
    mode = given[given.index("--resize") + 1] if "--resize" in given else ""
    wanted = SIZES.get(mode, (410, 256) if "--size" in given and "--only-if-bigger" not in given else None)
    assert wanted is None or (facts["width"], facts["height"]) == wanted
    assert ("webp" in first) == ("webp" in flags)
    assert ("txt" in first) == ("--caption" in flags)
    assert ("similarity" in facts) == ("--save" in flags)
    assert ("exif" in facts) != ("--no-exif" in flags)
    kept = first.get("jpg") == picture(1, 320, 200)
    assert kept == ("--skip-reencode" in flags or "--original" in flags)
    for name in ("sha256", "md5"):
        assert (name in facts) == (f"--digest {name}" in flags)


def test_other_formats(web, tmp_path, monkeypatch, capsys):
    """Samples are exported to files, Parquet and TFRecord with all of their fields."""
    monkeypatch.chdir(tmp_path)
    links = [web.url("127.0.0.1", f"/{number}") for number in range(4)]
    source = table(tmp_path / "links.parquet", links, TEXT=[f"text {number}" for number in range(4)])
    flags = ["--caption", "TEXT", "--rows-per-shard", "2", "--allow-networks", "127.0.0.0/8"]
    for command in (["download", source, "-o", "out/{i:05d}.tar", *flags], *map(shlex.split, EXPORTS)):
        with pytest.raises(SystemExit) as done:
            main(command[command[0] == "tarmac" :])
        assert not done.value.code, capsys.readouterr().err
    assert len(EXPORTS) == 3
    names = ("jpg", "json", "txt")
    expected = [{name: each[name] for name in names} for each in samples(tmp_path / "out")]
    assert [each["txt"] for each in expected] == [b"text %d" % number for number in range(4)]

    files = {path.name: path.read_bytes() for path in Path("files").rglob("*.*") if path.is_file()}
    keys = sorted({name.partition(".")[0] for name in files})
    assert [{name: files[f"{key}.{name}"] for name in names} for key in keys] == expected
    rows = pq.read_table(sorted(Path("rows").glob("*.parquet"))).to_pylist()
    assert [(row["jpg"], row["txt"].encode()) for row in rows] == [
        (each["jpg"], each["txt"]) for each in expected
    ]
    examples = [each for path in sorted(Path("records").glob("*.tfrecord")) for each in records(path)]
    assert [(each["jpg"][1], each["txt"][1]) for each in examples] == [
        (each["jpg"], each["txt"]) for each in expected
    ]
