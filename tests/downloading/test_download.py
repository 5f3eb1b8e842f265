"""Tables of links become shards in the order of their rows, with a status for each row."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import tarmac
from downloading.links import QUICK, counted, lines, outputs, samples, statuses, table, timeless
from harness.waiting import until
from harness.web import NOT_HERE, Answer, hosts, picture, serving
from tarmac.cli import main
from tarmac.errors import DecodeFailed, ErrorBudgetExceeded, JobMismatch, NotFound, TarmacError, UsageError

pytestmark = pytest.mark.processes
NAMES = [f"h{number}.test" for number in range(5)]
OPTIONS = {**QUICK, "hosts": hosts(*NAMES)}


@pytest.fixture
def web():
    """A web of pictures, /N, in which /down/N fails with 503 until `web.up` is set."""

    def script(request):
        name = request.path.rpartition("/")[2]
        if not name.isdigit():
            return NOT_HERE
        if request.path.startswith("/down") and not getattr(server, "up", False):
            return Answer(status=503)
        return Answer(picture(int(name), 80, 60))

    with serving(script) as server:
        yield server


def urls(web, count, path="/{}"):
    return [web.url(NAMES[number % 5], path.format(number)) for number in range(count)]


def test_a_sample_has_the_picture_the_caption_and_the_metadata(web, tmp_path):
    captions = ["one", None, "drei — ünï", "four"]
    source = table(
        tmp_path / "t.parquet",
        urls(web, 4),
        TEXT=captions,
        score=[0.5, float("nan"), None, 2.0],
        n=[1, 2, 3, 4],
    )
    report = tarmac.download(
        source,
        f"{tmp_path}/out/{{i:04d}}.tar",
        caption="text",
        save=["score", "n"],
        size=30,
        digest="sha256",
        **OPTIONS,
    )
    assert (report.read, report.written, report.units) == (4, 4, 1)
    written = samples(tmp_path / "out")
    assert [sample["__key__"] for sample in written] == [f"{number:09d}" for number in range(4)]
    assert [sample.get("txt", b"").decode() for sample in written] == ["one", "", "drei — ünï", "four"]
    first = json.loads(written[0]["json"])
    sha = hashlib.sha256(picture(0, 80, 60)).hexdigest()
    assert first == {
        "url": web.url("h0.test", "/0"), "caption": "one", "key": "000000000", "status": "success", "score": 0.5,
        "n": 1, "width": 40, "height": 30, "original_width": 80, "original_height": 60, "sha256": sha, "exif": {},
    }  # fmt: skip
    assert json.loads(written[1]["json"])["score"] is None
    (row, *_), _ = lines(tmp_path / "out"), None
    assert (row["key"], row["caption"], row["http_status"], row["sha256"]) == ("000000000", "one", 200, sha)
    assert row["bytes"] == len(picture(0, 80, 60))
    ds = tarmac.Dataset(str(tmp_path / "out" / "manifest.json"))
    assert [sample["__key__"] for sample in ds] == [f"{number:09d}" for number in range(4)]


def test_shards_have_the_order_of_the_rows_and_tables_are_joined(web, tmp_path):
    """Formats may differ; a block may begin in one table and end in the next."""
    links = urls(web, 23)
    table(tmp_path / "0.parquet", links[:7])
    (tmp_path / "1.csv").write_text("URL,x\n" + "".join(f'{url},"a\nb, c"\n' for url in links[7:11]))
    (tmp_path / "2.tsv").write_text("url\n" + "".join(f"{url}\n" for url in links[11:13]))
    with gzip.open(tmp_path / "3.jsonl.gz", "wt") as file:
        file.writelines(json.dumps({"url": url}) + "\n" for url in links[13:18])
    (tmp_path / "4.txt").write_text("\n".join(links[18:]) + "\n")
    report = tarmac.download(f"{tmp_path}/[0-4].*", f"{tmp_path}/out/", rows_per_shard=6, **OPTIONS)
    assert (report.units, report.written) == (4, 23)
    assert [row["url"] for row in lines(tmp_path / "out")] == links
    assert [pq.read_metadata(path).num_rows for path in sorted((tmp_path / "out").glob("*.parquet"))] == [
        6,
        6,
        6,
        5,
    ]
    assert [sample["__key__"] for sample in samples(tmp_path / "out")] == [
        f"{number:09d}" for number in range(23)
    ]


def test_lines_of_urls_have_no_other_columns(web, tmp_path):
    """A column that is asked for is not forgotten silently. Editors may write a byte order mark."""
    source = tmp_path / "links.txt"
    source.write_text("\n".join(urls(web, 3)))
    marked = tmp_path / "marked.txt"
    marked.write_bytes(b"\xef\xbb\xbf" + source.read_bytes().replace(b"\n", b"\r\n"))
    tarmac.download(marked, f"{tmp_path}/marked/", **OPTIONS)
    assert statuses(tmp_path / "marked") == ["success"] * 3
    before = len(web.requests)
    for wrong in (
        {"caption": "TEXT"},
        {"key": "id"},
        {"save": ["similarity"]},
        {"blur": "boxes"},
        {"verify": "md5"},
    ):
        with pytest.raises(UsageError, match="no column"):
            tarmac.download(source, f"{tmp_path}/out/", **wrong, **OPTIONS)
    assert len(web.requests) == before
    tarmac.download(source, f"{tmp_path}/out/", caption="txt", save="txt", known=(), **OPTIONS)
    assert [row["caption"] for row in lines(tmp_path / "out")] == urls(web, 3)
    assert [json.loads(sample["json"])["txt"] for sample in samples(tmp_path / "out")] == urls(web, 3)


def test_text_that_is_not_utf_8(web, tmp_path):
    """Such rows are like others: what is invalid in a caption becomes U+FFFD, and a link with it leads nowhere."""
    links = [each.encode() for each in urls(web, 3)]
    columns = {"url": [*links, links[0] + b"\xff"], "TEXT": [b"good", b"b\xffd", None, "ü".encode()]}
    dirty = {name: pa.array(values).view(pa.string()) for name, values in columns.items()}
    pq.write_table(pa.table(dirty), tmp_path / "t.parquet")
    tarmac.download(tmp_path / "t.parquet", f"{tmp_path}/out/", caption="TEXT", save=["TEXT"], **OPTIONS)
    assert statuses(tmp_path / "out") == ["success"] * 3 + ["http"]
    captions = ["good", "b\ufffdd", None, "ü"]
    assert [row["caption"] for row in lines(tmp_path / "out")] == captions
    assert [sample.get("txt", b"").decode() for sample in samples(tmp_path / "out")] == [
        "good",
        "b\ufffdd",
        "",
    ]


def test_tables_of_a_directory(web, tmp_path):
    links = urls(web, 9)
    (tmp_path / "in" / "more").mkdir(parents=True)
    table(tmp_path / "in" / "0.parquet", links[:4])
    table(tmp_path / "in" / "more" / "1.parquet", links[4:])
    (tmp_path / "in" / "notes.md").write_text("no table")
    tarmac.download(tmp_path / "in", f"{tmp_path}/out/", **OPTIONS)
    assert [row["url"] for row in lines(tmp_path / "out")] == links


def test_the_same_responses_make_the_same_bytes(web, tmp_path):
    source = table(tmp_path / "t.parquet", urls(web, 40))
    for name, most in (("a", 1), ("b", 64)):
        tarmac.download(
            source,
            f"{tmp_path}/{name}/",
            rows_per_shard=15,
            size=20,
            concurrency=most,
            final_retry=False,
            **OPTIONS,
        )
    assert outputs(tmp_path / "a") == outputs(tmp_path / "b")
    assert timeless(tmp_path / "a") == timeless(tmp_path / "b")
    sizes = [
        {path.name: path.stat().st_size for path in (tmp_path / name).glob("*.parquet")} for name in "ab"
    ]
    assert sizes[0] == sizes[1]


def test_running_again_asks_for_nothing(web, tmp_path):
    source = table(tmp_path / "t.parquet", urls(web, 20))
    tarmac.download(source, f"{tmp_path}/out/", rows_per_shard=8, **OPTIONS)
    before = len(web.requests)
    report = tarmac.download(source, f"{tmp_path}/out/", rows_per_shard=8, **OPTIONS | {"timeout": 1.0})
    assert (report.done, report.kept, report.written, len(web.requests)) == (0, 3, 20, before)
    with pytest.raises(JobMismatch, match="size"):
        tarmac.download(source, f"{tmp_path}/out/", rows_per_shard=8, size=9, **OPTIONS)
    (tmp_path / "out" / "00001.tar").unlink()
    assert tarmac.download(source, f"{tmp_path}/out/", rows_per_shard=8, **OPTIONS).done == 1


def test_tables_may_be_moved_and_spelt_in_another_way(web, tmp_path, monkeypatch):
    """A job is recognised by what its tables contain: another table of the same name is refused."""
    (tmp_path / "a").mkdir()
    table(tmp_path / "a" / "t.parquet", urls(web, 20))
    monkeypatch.chdir(tmp_path / "a")
    tarmac.download("t.parquet", "out/", rows_per_shard=8, **OPTIONS)
    before = len(web.requests)
    for source in ("./t.parquet", tmp_path / "a" / "t.parquet", "../a"):
        assert tarmac.download(source, "out/", rows_per_shard=8, **OPTIONS).kept == 3
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(tmp_path / "a" / "out")
    assert (
        tarmac.download(tmp_path / "b" / "t.parquet", f"{tmp_path}/b/out/", rows_per_shard=8, **OPTIONS).kept
        == 3
    )
    table(tmp_path / "t.parquet", urls(web, 19)[::-1] + urls(web, 1))
    with pytest.raises(JobMismatch, match=r"t\.parquet"):
        tarmac.download(tmp_path / "t.parquet", f"{tmp_path}/b/out/", rows_per_shard=8, **OPTIONS)
    assert len(web.requests) == before


def test_a_damaged_row_says_what_to_try(web, tmp_path):
    source = tmp_path / "t.csv"
    source.write_text("url,TEXT\n" + "".join(f"{url},text\n" for url in urls(web, 20)) + "bad,row,of three\n")
    with pytest.raises(DecodeFailed, match="row 21") as caught:
        tarmac.download(source, f"{tmp_path}/out/", rows_per_shard=8, **OPTIONS)
    assert "tarmac select" in caught.value.hint
    tarmac.select(source, tmp_path / "good")
    assert tarmac.download(tmp_path / "good", f"{tmp_path}/more/", **OPTIONS).written == 20


def test_keys_of_a_column(web, tmp_path):
    source = table(tmp_path / "t.parquet", urls(web, 5), uid=["a", "b", "a", "x.y", None])
    tarmac.download(source, f"{tmp_path}/out/", key="uid", **OPTIONS)
    assert [sample["__key__"] for sample in samples(tmp_path / "out")] == ["a", "b"]
    assert statuses(tmp_path / "out") == ["success", "success", "bad_key", "bad_key", "bad_key"]


def test_bytes_are_compared_with_a_digest(web, tmp_path):
    good = hashlib.md5(picture(0, 80, 60)).hexdigest()
    source = table(tmp_path / "t.parquet", urls(web, 3), md5=[good.upper(), "0" * 32, None])
    tarmac.download(source, f"{tmp_path}/out/", digest="md5", verify="md5", **OPTIONS)
    assert statuses(tmp_path / "out") == ["success", "other_content", "success"]


def test_boxes_of_a_column_are_blurred(web, tmp_path):
    boxes = [[[0.0, 0.0, 1.0, 1.0]], [], None, [["left"]]]
    texts = [json.dumps(each) for each in boxes]
    source = table(tmp_path / "t.parquet", urls(web, 1) * 4, faces=texts)
    tarmac.download(source, f"{tmp_path}/out/", blur="faces", skip_reencode=True, **OPTIONS)
    blurred, plain, none = samples(tmp_path / "out")
    assert plain["jpg"] == none["jpg"] == picture(0, 80, 60) != blurred["jpg"]
    assert statuses(tmp_path / "out")[3] == "bad_boxes"


def test_the_run_ends_with_another_attempt_for_what_may_pass(tmp_path):
    """The late rows are in a further shard; the others stay as they are."""

    def script(request):
        if request.path.startswith("/late") and request.number < 2:
            return Answer(status=500)
        name = request.path.rpartition("/")[2]
        return Answer(picture(int(name), 80, 60)) if name.isdigit() else NOT_HERE

    with serving(script) as web:
        links = [web.url(NAMES[n % 5], f"/late/{n}" if n % 4 == 0 else f"/{n}") for n in range(30)]
        links[7] = web.url("h0.test", "/absent")
        source = table(tmp_path / "t.parquet", links)
        report = tarmac.download(source, f"{tmp_path}/out/", rows_per_shard=10, url_retries=1, **OPTIONS)
        again = tarmac.download(source, f"{tmp_path}/out/", rows_per_shard=10, url_retries=1, **OPTIONS)
    assert (report.read, report.written, report.failed, report.units) == (30, 29, 1, 4)
    assert report.statuses == again.statuses == {"success": 29, "http": 1}
    late = [sample["__key__"] for sample in tarmac.read(str(tmp_path / "out" / "00003.tar"))]
    assert late == [f"{number:09d}" for number in range(0, 30, 4)]
    assert counted(tmp_path / "out") == {"success": 29, "http": 1}
    keys = [sample["__key__"] for sample in tarmac.Dataset(str(tmp_path / "out" / "manifest.json"))]
    assert sorted(keys) == [f"{number:09d}" for number in range(30) if number != 7]


def test_failed_rows_can_be_fetched_later(web, tmp_path):
    links = urls(web, 10) + urls(web, 10, "/down/{}") + [web.url("h0.test", "/absent")]
    source = table(tmp_path / "t.parquet", links)
    options = OPTIONS | {"rows_per_shard": 8, "url_retries": 0, "final_retry": False}
    report = tarmac.download(source, f"{tmp_path}/out/", **options)
    assert (report.written, report.failed) == (10, 11)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("0*")}
    first = tarmac.download(source, f"{tmp_path}/out/", retry="transient", **options)
    assert (first.written, first.failed) == (10, 11)
    web.up = True
    requests = len(web.requests)
    second = tarmac.download(source, f"{tmp_path}/out/", retry="transient", **options)
    assert (second.written, second.failed, second.read) == (20, 1, 21)
    assert Counter(path for _, path in web.requests[requests:]) == Counter(
        f"/down/{number}" for number in range(10)
    )
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(tarmac.Dataset(str(tmp_path / "out" / "manifest.json"))) == 20
    third = tarmac.download(source, f"{tmp_path}/out/", retry=["failed"], **options)
    assert (third.written, web.count("/absent")) == (20, 2)


def test_a_run_in_which_most_rows_fail_stops_and_continues_later(web, tmp_path):
    links = urls(web, 1000, "/down/{}")
    source = table(tmp_path / "t.parquet", links)
    options = OPTIONS | {"url_retries": 0, "max_wait": 0.1}
    with pytest.raises(ErrorBudgetExceeded, match=r"200 of 200 rows failed: .*"):
        tarmac.download(source, f"{tmp_path}/out/", **options)
    assert web.count("/down") < 400
    assert not list((tmp_path / "out").glob("*.tar"))
    web.up = True
    tarmac.downloading.job._kept.known = None  # a later process
    assert tarmac.download(source, f"{tmp_path}/out/", **options).written == 1000


def test_few_rows_that_all_fail_are_an_exit_status(tmp_path, capsys):
    with serving(lambda _: NOT_HERE) as web:
        source = table(tmp_path / "t.parquet", urls(web, 3))
        command = ["download", source, "-o", f"{tmp_path}/out/", "--allow-networks", "127.0.0.0/8", "--json"]
        command += ["--hosts", ",".join(f"{name}=127.0.0.1" for name in NAMES)]
        with pytest.raises(SystemExit) as done:
            main(command)
    assert done.value.code == 1
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (printed["read"], printed["failed"], printed["statuses"]) == (3, 3, {"http": 3})
    (remark,) = printed["remarks"]
    assert str(tmp_path / "out" / "00000.parquet") in remark
    assert [row["error_message"] for row in lines(tmp_path / "out")] == ["404 Scripted"] * 3


def test_duplicates_are_left_out_within_and_across_runs(web, tmp_path):
    links = [web.url(NAMES[n % 5], f"/{n % 20}") for n in range(60)]
    source = table(tmp_path / "t.parquet", links)
    options = OPTIONS | {"rows_per_shard": 25, "dedup": "exact"}
    report = tarmac.download(source, f"{tmp_path}/a/", **options)
    assert (report.written, report.dropped) == (20, 40)
    assert statuses(tmp_path / "a") == ["success"] * 20 + ["duplicate"] * 40
    more = table(tmp_path / "m.parquet", [web.url("h0.test", f"/{number}") for number in range(15, 25)])
    known = sorted((tmp_path / "a").glob("*.parquet"))
    report = tarmac.download(more, f"{tmp_path}/b/", known=known, **options)
    assert statuses(tmp_path / "b") == ["duplicate"] * 5 + ["success"] * 5
    with pytest.raises(UsageError, match="one process"):
        tarmac.download(more, f"{tmp_path}/c/", jobs=2, **options)


def test_pictures_that_look_alike_are_left_out_within_and_across_runs(tmp_path):
    def script(request):
        kind, _, name = request.path[1:].rpartition("/")
        if not name.isdigit():
            return NOT_HERE
        with Image.open(io.BytesIO(picture(int(name), 320, 240))) as image:
            smaller = image.resize((200, 150), Image.Resampling.LANCZOS)
        stream = io.BytesIO()
        smaller.save(stream, "WEBP", quality=80)
        return Answer(stream.getvalue() if kind == "copy" else picture(int(name), 320, 240))

    with serving(script) as web:
        links = [web.url("h0.test", f"/{n}") for n in range(10)]
        first = table(tmp_path / "a.parquet", [*links, *(web.url("h1.test", f"/copy/{n}") for n in range(5))])
        more = table(tmp_path / "b.parquet", [web.url("h1.test", f"/copy/{n}") for n in range(5, 15)])
        tarmac.download(first, f"{tmp_path}/a/", dedup="near", rows_per_shard=8, **OPTIONS)
        for dedup, known in (("near", [f"{tmp_path}/a/*.parquet"]), ("exact", tmp_path / "a")):
            tarmac.download(more, f"{tmp_path}/{dedup}/", dedup=dedup, known=known, **OPTIONS)
    assert statuses(tmp_path / "a") == ["success"] * 10 + ["duplicate"] * 5
    assert statuses(tmp_path / "near") == ["duplicate"] * 5 + ["success"] * 5
    assert statuses(tmp_path / "exact") == ["success"] * 10


def test_the_command_line(web, tmp_path, capsys):
    source = table(tmp_path / "t.parquet", urls(web, 5), caption=list("abcde"), similarity=[0.1] * 5)
    command = [
        "download",
        source,
        "-o",
        f"{tmp_path}/out/{{i:05d}}.tar",
        "--caption",
        "caption",
        "--save",
        "similarity",
    ]
    command += [
        "--size",
        "30",
        "--resize",
        "center_crop",
        "--format",
        "webp",
        "--quality",
        "80",
        "--only-if-bigger",
    ]
    command += [
        "--allow-networks",
        "127.0.0.0/8",
        "--ignore",
        "tdmrep,robots",
        "--user-agent",
        "mybot/2 (+http://x.test)",
    ]
    command += [
        "--hosts",
        ",".join(f"{name}=127.0.0.1" for name in NAMES),
        "--no-exif",
        "--rows-per-shard",
        "3",
    ]
    with pytest.raises(SystemExit) as done:
        main(command)
    assert done.value.code in (0, None)
    assert "download: 5 rows, 5 fetched (100.0%)" in capsys.readouterr().err
    written = samples(tmp_path / "out")
    assert [sample["txt"] for sample in written] == [b"a", b"b", b"c", b"d", b"e"]
    assert all(sample["webp"][8:12] == b"WEBP" for sample in written)
    assert "exif" not in json.loads(written[0]["json"])
    assert web.agents == {"mybot/2 (+http://x.test)"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "link"}, {"ignore": ["robot"]}, {"allow_networks": ["10.0.0.1/8"]}, {"max_failed": 2},
        {"rows_per_shard": 0}, {"dedup": "some"}, {"known": ["a.parquet"]}, {"concurrency": 0}, {"user_agent": ""},
        {"table_format": "xml"}, {"digest": "crc"}, {"retry": "later"}, {"nameservers": ["localhost"]},
        {"hosts": {"a.test": "b.test"}}, {"host_concurrency": 2, "jobs": 3, "rows_per_shard": 1},
        {"size": "256"}, {"size": 25.6}, {"caption": 3}, {"save": 3}, {"save": [3]}, {"rows_per_shard": "10"},
        {"max_failed": "all"}, {"timeout": None}, {"host_rate": float("nan")}, {"hosts": ["a.test"]}, {"ignore": 3},
        {"hosts": {"a.test": 1}}, {"user_agent": 3}, {"jobs": "2"}, {"retry": 503}, {"exif": "no"}, {"overwrite": 1},
        {"verify_tls": "no"}, {"manifest": 3}, {"allow_networks": 10},
    ],
)  # fmt: skip
def test_invalid_options(wrong, tmp_path):
    source = table(tmp_path / "t.parquet", ["http://a.test/x"] * 3)
    with pytest.raises(UsageError):
        tarmac.download(source, f"{tmp_path}/out/", **wrong)
    assert not Path(tmp_path, "out").exists()


def test_mistakes_are_errors_before_anything_is_fetched(web, tmp_path):
    source = table(tmp_path / "t.parquet", urls(web, 3))
    for known, error in (("absent.parquet", NotFound), (source, UsageError)):
        with pytest.raises(error, match=Path(known).name):
            tarmac.download(source, f"{tmp_path}/out/", dedup="near", known=[known], **OPTIONS)
    with pytest.raises(UsageError, match="several files"):
        tarmac.download(source, "-", **OPTIONS)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="it is a file"):
        tarmac.download(source, f"{tmp_path}/file/", **OPTIONS)
    with pytest.raises(TarmacError, match="file"):
        tarmac.download(source, f"{tmp_path}/out/", html=tmp_path / "file" / "page.html", **OPTIONS)
    assert not web.requests
    tarmac.download(source, f"{tmp_path}/out/", html=tmp_path / "new" / "page.html", **OPTIONS)
    assert (tmp_path / "new" / "page.html").exists()


def test_tables_that_are_not_there(tmp_path):
    for name in ("absent", "absent.parquet", "absent/"):
        with pytest.raises(NotFound, match="absent"):
            tarmac.download(tmp_path / name, f"{tmp_path}/out/")
    assert not Path(tmp_path, "out").exists()


def test_numbers_while_it_runs_and_a_page_at_the_end(web, tmp_path, monkeypatch):
    monkeypatch.setattr("tarmac.downloading.live.EVERY", 0.0)
    links = [*urls(web, 30), web.url("h1.test", "/absent<b>"), None]
    said = []
    source = table(tmp_path / "t.parquet", links)
    tarmac.download(
        source,
        f"{tmp_path}/out/",
        rows_per_shard=10,
        html=tmp_path / "page.html",
        live=said.append,
        **OPTIONS,
    )
    assert [each["rows"] for each in said] == list(range(1, 33))
    assert said[-1]["errors"] == {"http": 1, "invalid_url": 1}
    assert said[-1]["success"] == round(30 / 32, 4)
    assert said[-1]["bytes"] == sum(row["bytes"] or 0 for row in lines(tmp_path / "out"))
    page = (tmp_path / "page.html").read_text()
    for text in ("32 rows, 30 fetched", "h1.test", "http: 404", "invalid_url", "<svg", "Rows per second"):
        assert text in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<b>" not in page


def test_numbers_of_several_processes_while_they_run(tmp_path):
    """The last answer comes only when the numbers of the others were told."""
    said: list[dict[str, object]] = []

    def script(request):
        if request.path == "/11":
            assert until(lambda: said and said[-1]["rows"])
        name = request.path.removeprefix("/")
        return Answer(picture(int(name), 80, 60)) if name.isdigit() and name != "5" else NOT_HERE

    with serving(script) as web:
        source = table(tmp_path / "t.parquet", urls(web, 12))
        options = OPTIONS | {"rows_per_shard": 4, "jobs": 2, "final_retry": False, "live": said.append}
        tarmac.download(source, f"{tmp_path}/out/", **options)
    last = said[-1]
    assert (last["rows"], last["errors"], last["success"]) == (12, {"http": 1}, round(11 / 12, 4))
    assert last["bytes"] == sum(row["bytes"] or 0 for row in lines(tmp_path / "out"))
    assert [each["rows"] for each in said] == sorted(each["rows"] for each in said)


def test_saved_columns_are_in_the_status_of_all_rows(web, tmp_path):
    """They have the types of the tables, or are text if these differ; columns of the status itself come first."""
    links = [*urls(web, 2), web.url(NAMES[0], "/absent")]
    columns = {"score": [0.5, None, 2.5], "n": [1, 2, 3], "tags": [["a"], [], None], "width": ["x", "y", "z"]}
    one = table(tmp_path / "a.parquet", links, **columns)
    other = table(
        tmp_path / "b.parquet", links[2:], **{name.upper(): each[2:] for name, each in columns.items()}
    )
    (tmp_path / "c.csv").write_text(f"url,score,n,tags,width\n{links[2]},7,,é,9\n")
    save = ["score", "n", "tags", "width"]
    tarmac.download([one, other], f"{tmp_path}/typed/", save=save, **OPTIONS)
    written = pq.read_table(tmp_path / "typed" / "00000.parquet")
    assert written["score"].to_pylist() == [0.5, None, 2.5, 2.5]
    assert written["n"].to_pylist() == [1, 2, 3, 3]
    assert written["tags"].to_pylist() == ['["a"]', "[]", None, None]
    assert written["width"].to_pylist() == [80, 80, None, None]
    tarmac.download([one, tmp_path / "c.csv"], f"{tmp_path}/text/", save=save, **OPTIONS)
    written = pq.read_table(tmp_path / "text" / "00000.parquet")
    assert written["score"].to_pylist() == ["0.5", None, "2.5", "7"]
    assert written["n"].to_pylist() == ["1", "2", "3", ""]  # an empty cell of CSV


def test_a_directory_of_tables(web, tmp_path, monkeypatch):
    """Its tables are those that `select` wrote, say; tables in the output belong to the output."""
    monkeypatch.chdir(tmp_path)
    Path("links").mkdir()
    for number in range(2):
        table(Path("links") / f"part-{number}.parquet", urls(web, 3, f"/{number}{{}}"))
    Path("links/manifest.json").write_text("{}")
    for kept in (0, 2):
        report = tarmac.download("links", "links/out/", rows_per_shard=3, **OPTIONS)
        assert (report.read, report.kept) == (6, kept)
    with pytest.raises(UsageError, match="output"):
        tarmac.download("links", "links/{i}.tar", **OPTIONS)
    shutil.rmtree("links/out")
    assert tarmac.download("links", "{i}.tar", **OPTIONS).written == 6  # beside the directory
