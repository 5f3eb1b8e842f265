"""`import wids` finds tarmac, with the names that programs import."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import textwrap

import pytest

import tarmac.compat
from harness.shards import plain
from tarmac.compat.wids import wids_bench
from tarmac.errors import UnsafeUrl

# The names that programs and the tests of wids 0.2.111 import, by module.
NAMES = {
    "wids": """ShardListDataset ChunkedSampler DistributedChunkedSampler ShardedSampler
        wids wids_dl wids_lru wids_specs""",
    "wids.wids": """ShardListDataset ShardListSampler ShardedSampler ChunkedSampler DistributedChunkedSampler
        IndexedTarSamples LRUShards CacheLocalname DefaultLocalname compute_file_md5sum compute_num_samples
        splitname group_by_key interpret_transformations hash_dataset_name lengths_to_ranges
        intersect_range intersect_ranges iterate_ranges DistributedLocalSampler""",
    "wids.wids_bench": "main_wids main_wds",
    "wids.wids_cleanup": "keep_most_recent_files",
    "wids.wids_decode": """check_keys decode_all_gz decode_basic decode_images_to_pil decode_images_to_numpy
        default_decoder""",
    "wids.wids_dir": "",
    "wids.wids_dl": "download_and_open download_file",
    "wids.wids_index": "main main_create main_update main_info main_sample AtomicJsonUpdate",
    "wids.wids_lru": "LRUCache",
    "wids.wids_mmtar": "MMIndexedTar keep_while_reading",
    "wids.wids_specs": """urldir urlmerge check_shards set_all load_remote_dsdesc_raw rebase_shardlist
        resolve_dsdesc load_dsdesc_and_resolve""",
    "wids.wids_tar": "TarFileReader find_index_file",
}


@pytest.mark.parametrize("name", NAMES)
def test_names(installed, name):
    module = importlib.import_module(name)
    assert "tarmac" in module.__file__
    assert [item for item in NAMES[name].split() if not hasattr(module, item)] == []


def test_imports_find_tarmac(installed):
    import wids
    import wids.wids_lru
    from wids import ShardListDataset
    from wids.wids import IndexedTarSamples
    from wids.wids_specs import urldir

    assert ShardListDataset is tarmac.compat.wids.wids.ShardListDataset
    assert wids.IndexedTarSamples is IndexedTarSamples
    assert wids.wids_lru.LRUCache is tarmac.compat.wids.wids_lru.LRUCache
    assert urldir("a/b") == "a"
    with pytest.raises(ModuleNotFoundError):
        import wids.nothing


def test_uninstall(tmp_path, monkeypatch):
    (tmp_path / "wids").mkdir()
    (tmp_path / "wids" / "__init__.py").write_text("version = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import wids as real

    assert real.version == 1
    for _ in range(2):
        tarmac.compat.install()
        import wids

        assert wids is sys.modules["tarmac.compat.wids"]
        tarmac.compat.uninstall()
        assert sys.modules["wids"] is real
    del sys.modules["wids"]


def test_heavy_libraries_are_imported_on_first_use():
    code = """
        import sys, tarmac.compat
        tarmac.compat.install()
        import webdataset
        assert not {"numpy", "pyarrow", "torch", "wids"} & set(sys.modules)
        import wids
        assert "torch" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


SCRIPT = """
    import sys
    import torch
    import wids
    from wids import wids_specs

    def key(sample):
        import wids as again

        assert again.__file__ == wids.__file__
        return sample["__key__"], sample[".cls"]

    if __name__ == "__main__":
        dataset = wids.ShardListDataset(sys.argv[1], keep=True).add_transform(key)
        sampler = wids.ChunkedSampler(dataset, chunksize=3, shuffle=False)
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=2, sampler=sampler, num_workers=1, multiprocessing_context="spawn"
        )
        print(wids.__file__, len(dataset), *(name for names, _ in loader for name in names))
"""


def test_a_program_runs_unchanged(tmp_path):
    (tmp_path / "a.tar").write_bytes(plain([(f"{i}.cls", b"%d" % i) for i in range(5)]))
    shards = [{"url": "a.tar", "nsamples": 5}]
    (tmp_path / "index.json").write_text(json.dumps({"wids_version": 1, "shardlist": shards}))
    (tmp_path / "train.py").write_text(textwrap.dedent(SCRIPT))
    command = [
        sys.executable,
        "-m",
        "tarmac.compat",
        str(tmp_path / "train.py"),
        str(tmp_path / "index.json"),
    ]
    # On a busy machine, the resource tracker of Python may warn about a semaphore of torch's queues.
    quiet = {"PYTHONWARNINGS": "ignore::UserWarning:multiprocessing.resource_tracker"}
    environ = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | quiet
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    file, *rest = done.stdout.split()
    assert "tarmac" in file
    assert rest == ["5", "0", "1", "2", "3", "4"]
    assert done.stderr == ""


def test_the_benchmark_prints_keys(tmp_path, capsys, monkeypatch):
    (tmp_path / "a.tar").write_bytes(plain([(f"{i}.cls", b"%d" % i) for i in range(2)]))
    path, shards = tmp_path / "list.json", [{"url": "a.tar", "nsamples": 2}]
    path.write_text(json.dumps({"wids_version": 1, "shardlist": shards}))
    for command, first in (("wids", ["2"]), ("wds", [])):
        monkeypatch.setattr(sys, "argv", ["wids_bench", command, str(path)])
        wids_bench.main()
        assert capsys.readouterr().out.splitlines() == [*first, "0 0", "1 1"]
        path.write_text(json.dumps({"wids_version": 1, "shardlist": [{"url": "pipe:true", "nsamples": 2}]}))
        with pytest.raises(UnsafeUrl):
            wids_bench.main()
        path.write_text(json.dumps({"wids_version": 1, "shardlist": shards}))
