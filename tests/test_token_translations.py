"""Every command of the table for users of precompute_tokens.py and combine_token_dicts.py does what it should."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

import tarmac
from tarmac.cli import main
from tarmac.tools.mappers.records import FIELD, from_arrow
from tarmac.tools.mappers.records import iter_rows as rows_of

pytest.importorskip("tokenizers")  # not in the quick tests
PAGE = Path(__file__).parent.parent / "docs" / "tokens.md"
TABLE = PAGE.read_text().partition("## Coming from precompute_tokens.py")[2]
ROWS = re.findall(r"^\| (.+?) \| `(tarmac .*)` \|$", TABLE, re.MULTILINE)
REASONS = re.findall(r"^\| (.+?) \| ((?!`tarmac|here|---).+) \|$", TABLE, re.MULTILINE)
NAMES = [
    "accelerate launch", "+experiments",
    "data.block_size", "n_train_samples", "split_dataset", "save_tmp_interval", "data.resolution", "text_vocab_size",
    "img_token_shift", "use_slow_tokenizer", "add_image_token", "token_output_dir", "raw_data_dir", "use_chameleon",
    "loader.batch_size", "loader.num_workers", "use_identity_collate", "--array=0-100%25", "--time=2-00:00:00",
    "--cpus-per-gpu", "--mem-per-gpu", "--nodes", "--gpus-per-node", "--partition", "--job-name", "--move_files",
    "--delete_after_combining", "--mem_efficient", "--allow_tmp", "--use_tmp", "--use_timestamp", "--allow_existing",
    "--force_overwrite", "--min_idx", "--max_idx", "--split_num", "--split_idx", "--require_image_tokens",
    "--allow_zero_idx", "--output_dir",
]  # fmt: skip
"""The flags of both programs."""
KEYS = [f"{shard}{row:05d}" for shard in range(2) for row in range(4)]


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """Write what the first example of the page writes, and what the commands name besides."""
    folder = tmp_path_factory.mktemp("material")
    (example,) = re.findall(r"```python\n(import numpy.*?)```", PAGE.read_text(), re.DOTALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(compile(example, str(PAGE), "exec"), {})
        Path("other.py").write_text(Path("vq.py").read_text().replace("VQ", "Other"))
        Path("letters.py").write_text(
            "class Letters:\n    vocab_size = 256\n\n    def encode(self, text):\n        return list(text.encode())\n"
        )
        Path("captions.jsonl").write_text('{"__key__": "a", "txt": "a cat"}\n')
        tarmac.tokenize(
            "train-*.tar", "combinable/", text="txt", tokenizer="tokenizer.json", block_size=6, jobs=1
        )
    return folder


def part_rows(folder: Path) -> dict[str, dict]:
    shards = sorted(folder.glob("*.tar"))
    return {
        key: row
        for shard in shards
        for s in tarmac.read(str(shard))
        for key, row in rows_of(from_arrow(s[FIELD]))
    }


def run(line: str) -> None:
    with pytest.raises(SystemExit) as done:
        main(shlex.split(line)[1:])
    assert not done.value.code


def test_every_flag_has_a_row():
    before = [name for name, _ in (*ROWS, *REASONS)]
    assert [name for name in NAMES if not any(name in each for each in before)] == []
    assert len(ROWS) > 20
    assert len(REASONS) == 6


@pytest.mark.parametrize(("before", "command"), ROWS, ids=[command[:90] for _, command in ROWS])
def test_the_command_works(before, command, material, tmp_path, monkeypatch, capfd):
    shutil.copytree(material, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    verb = command.split()[1]
    if verb == "combine":
        Path("combinable").rename("tokens")
    run(command)
    CHECKS[verb](command, capfd.readouterr().out)


def check_tokenized(command: str, out: str) -> None:
    folder = Path(re.findall(r"-o (\S+)", command)[0])
    rows = part_rows(folder)
    assert list(rows) == (KEYS[:5] if "--limit 5" in command else KEYS)
    (record,) = list(tarmac.read(f"{folder}/train-000000.tar"))
    info = from_arrow(record[FIELD]).schema.info
    for flag, name in {
        "--block-size": "block_size",
        "--vocab-size": "vocab_size",
        "--image-token-shift": "image_token_shift",
    }.items():
        for number in re.findall(rf"{flag} (\d+)", command):
            assert info[name] == int(number)
    images = [row.get("image", row.get("tokens")).tolist()[-4:] for row in rows.values()]
    if "--image " in command or "--interleave" in command:
        assert images == [[0] * 4, [4] * 4, [7] * 4, [11] * 4] * 2  # brightness in steps of 17
    if "letters.py" in command:
        assert rows[KEYS[2]]["tokens"].tolist() == list(b"a cat")
    elif "--text" in command:
        assert all(row.get("text", row.get("tokens"))[0] == 1 for row in rows.values())  # <s>
    if "--interleave" in command:
        assert rows[KEYS[2]]["modality"].tolist() == [0] * 4 + [1] * 4
    if "--add-tokens" in command:
        assert "<image>" in info["special_tokens"]


def check_packed(command: str, out: str) -> None:
    assert [sample["txt"] for sample in tarmac.read("packed-000000.tar")] == [b"a cat"]


def check_script(command: str, out: str) -> None:
    for line in (
        "--array=0-100%25", "--time=2-00:00:00", "--cpus-per-task=12", "--mem=100G", "--partition=preempt",
        "--job-name=cambrian_precompute_tokens", "--nodes=1",
    ):  # fmt: skip
        assert f"#SBATCH {line}\n" in out
    assert "tarmac tokenize" in out


def check_combined(command: str, out: str) -> None:
    from tensordict import TensorDict

    named = re.findall(r"-o (\S+)", command)
    folder = Path(named[0]) if named else Path("tokens") if "--move" in command else Path("tokens/combined")
    loaded = TensorDict.load_memmap(folder)
    assert len(loaded) == len(KEYS)
    assert Path("tokens/train-000000.tar").exists() == ("--delete-parts" not in command)


CHECKS = {"tokenize": check_tokenized, "pack": check_packed, "jobs": check_script, "combine": check_combined}
