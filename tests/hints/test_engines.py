"""Follow the hints of engines that run units elsewhere."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import cloudpickle
import pytest

import tarmac
from harness import engines, required, reserved_ports
from harness.clusters import dask_cluster, import_path
from harness.hints import follows, hinted
from harness.waiting import until
from tarmac.errors import EngineError
from tarmac.jobs.engines import remote

pytestmark = pytest.mark.processes
IMPORTS = (
    "install the module on the workers, or name the function as FILE.py:FUNCTION on a path that they see."
)


@dataclass
class Elsewhere:
    """An engine whose worker is another interpreter with other modules, in another directory."""

    modules: str = "."
    about: dict[str, object] = field(default_factory=dict)

    def run(self, work, units):
        code = "import pickle, sys; from tarmac.jobs.engines.remote import run_sent\n"
        code += "sys.stdout.buffer.write(run_sent(*pickle.load(sys.stdin.buffer)))"
        for unit in units:
            sent = ({**remote.sender(None), **self.about}, cloudpickle.dumps(work), pickle.dumps(unit))
            environment = {**os.environ, "PYTHONPATH": import_path(self.modules)}
            command = [sys.executable, "-c", code]
            done = subprocess.run(
                command,
                input=pickle.dumps(sent),
                env=environment,
                cwd="/",
                stdout=subprocess.PIPE,
                check=True,
            )
            yield unit, pickle.loads(done.stdout)


@follows(
    "install the module on the workers, or name the function as FILE.py:FUNCTION on a path that they see.",
    "install the same version of your module on all workers.",
)
def test_functions_of_modules_that_workers_do_not_have(tmp_path, monkeypatch):
    shards = engines.make_shards(tmp_path, 1)
    modules, other = tmp_path / "modules", tmp_path / "other"
    for folder, name in ((modules, "function"), (other, "another")):
        folder.mkdir()
        (folder / "of_a_user.py").write_text(f"def {name}(sample):\n    return sample\n")
    monkeypatch.syspath_prepend(modules)
    import of_a_user

    with hinted(IMPORTS, EngineError):
        tarmac.map(shards, f"{tmp_path}/a/", of_a_user.function, engine=Elsewhere())
    tarmac.map(shards, f"{tmp_path}/a/", of_a_user.function, engine=Elsewhere(str(modules)))
    tarmac.map(shards, f"{tmp_path}/b/", f"{modules}/of_a_user.py:function", engine=Elsewhere())
    with hinted("install the same version of your module on all workers.", EngineError):
        tarmac.map(shards, f"{tmp_path}/c/", of_a_user.function, engine=Elsewhere(str(other)))
    tarmac.map(shards, f"{tmp_path}/c/", of_a_user.function, engine=Elsewhere(str(modules)))
    (other / "of_a_user.py").write_text("def function(sample):\n    return None\n")
    with hinted("install the same version of your module on all workers.", EngineError):
        tarmac.map(shards, f"{tmp_path}/d/", of_a_user.function, engine=Elsewhere(str(other)))
    tarmac.map(shards, f"{tmp_path}/d/", of_a_user.function, engine=Elsewhere(str(modules)))
    monkeypatch.delitem(sys.modules, "of_a_user")


@follows("absolute paths in a directory that all workers share, or URLs.")
def test_relative_paths_on_a_machine_without_the_directory(tmp_path, monkeypatch):
    engines.make_shards(tmp_path, 1)
    monkeypatch.chdir(tmp_path)
    engine = Elsewhere(about={"directory": "/nonexistent"})
    with hinted("absolute paths in a directory that all workers share, or URLs.", EngineError):
        tarmac.copy("in-*.tar", "out/", engine=engine)
    tarmac.copy(f"{tmp_path}/in-*.tar", f"{tmp_path}/out/", engine=engine)
    tarmac.copy("in-*.tar", "relative/", engine=Elsewhere())
    assert Path("relative/in-00.tar").read_bytes() == Path("out/in-00.tar").read_bytes()


@follows(
    "start the cluster, or correct the address that `engine` has.",
    "start workers and run the same command again.",
    "run the same command again when the cluster is up; finished outputs are kept.",
)
def test_clusters_that_are_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "NO_WORKERS", 0.5)
    shards, started = engines.make_shards(tmp_path), tmp_path / "started"

    def slow(sample):
        import time

        started.touch()
        time.sleep(0.0 if done.exists() else 10_000)
        return sample

    done = tmp_path / "done"
    arguments = (shards, f"{tmp_path}/out/", slow)
    with reserved_ports(1) as (port,):
        with hinted("start the cluster, or correct the address that `engine` has.", EngineError):
            tarmac.map(*arguments, engine=f"dask://127.0.0.1:{port}")
    with required(dask_cluster(0)) as cluster:
        with hinted("start workers and run the same command again.", EngineError):
            tarmac.map(*arguments, engine=cluster.engine)
    with required(dask_cluster(1)) as cluster:
        ending = threading.Thread(target=lambda: until(started.exists) and cluster.scheduler.close())
        ending.start()
        with hinted(
            "run the same command again when the cluster is up; finished outputs are kept.", EngineError
        ):
            tarmac.map(*arguments, engine=cluster.engine)
        ending.join()
    done.touch()
    with required(dask_cluster(1)) as cluster:
        assert tarmac.map(*arguments, engine=cluster.engine).written == 24


@follows("run the same command again when all machines have the same files.")
def test_a_file_that_is_edited_while_a_job_runs(tmp_path):
    shards = engines.make_shards(tmp_path, 1)
    path = tmp_path / "edited.py"
    path.write_text("def function(sample):\n    return sample\n")

    class Edited(Elsewhere):
        def run(self, work, units):
            before = path.read_text()
            units = list(units)
            sent = cloudpickle.dumps(work)
            path.write_text(before.replace("return sample", "return None"))
            try:
                for unit in units:
                    yield unit, pickle.loads(remote.run_sent(remote.sender(None), sent, pickle.dumps(unit)))
            finally:
                path.write_text(before)

    with hinted("run the same command again when all machines have the same files.", EngineError):
        tarmac.map(shards, f"{tmp_path}/a/", f"{path}:function", engine=Edited())
    tarmac.map(shards, f"{tmp_path}/a/", f"{path}:function", engine=Elsewhere())
    assert len(list(tarmac.read(f"{tmp_path}/a/*.tar"))) == 4
