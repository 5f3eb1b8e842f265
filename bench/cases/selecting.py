"""Select: keep the large images of ten million links and shuffle them, beside the usual program for Spark.

Both start with a new process and end with the files. Memory is that of the process, 2 GB at most; that of Spark is
in Java.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from bench import data
from bench.measure import peak_memory
from bench.registry import Done, Site, Work, case

PER_SAMPLE = 100
"""Rows for each small sample of the other cases: ten million by default."""
TABLES = 10
SIDE = 1024
MOST_MEMORY = 2 * 10**9


def links(site: Site) -> Path:
    """Return a directory of tables, which is made if it is missing."""
    import pyarrow.parquet as pq

    count = site.small * PER_SAMPLE // TABLES
    path = site.data / f"links-{site.small * PER_SAMPLE}-{data.VERSION}"
    if not path.exists():
        part = path.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for number in range(TABLES):
            pq.write_table(data.link_rows(count, number), part / f"{number:03d}.parquet")
        part.rename(path)
    return path


@case("select and shuffle 10 M links", sides=("tarmac", "pyspark"), ratio=5.0)
def select_and_shuffle(site: Site, side: str) -> Work:
    tables = links(site)

    def work() -> Done:
        with tempfile.TemporaryDirectory(dir=site.data) as folder:
            return (in_tarmac if side == "tarmac" else in_spark)(site, tables, f"{folder}/big")

    return work


def in_tarmac(site: Site, tables: Path, output: str) -> Done:
    import tarmac

    report = tarmac.select(tables, output, min_size=SIDE, shuffle=0, progress=False)
    memory = peak_memory()
    fault = f"{memory / 1e9:.2f} GB of memory" if memory > MOST_MEMORY else ""
    note = f"{report.written} rows in {memory / 1e6:.0f} MB"
    return Done(site.small * PER_SAMPLE, note=note, fault=fault)


def in_spark(site: Site, tables: Path, output: str) -> Done:
    os.environ["SPARK_LOCAL_IP"], os.environ["PYSPARK_PYTHON"] = "127.0.0.1", sys.executable
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import rand

    settings = {"spark.driver.memory": "8G", "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    settings |= {"spark.ui.showConsoleProgress": "false"}
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]").appName("links")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        df = spark.read.parquet(str(tables))
        df = df.filter((df.WIDTH >= SIDE) & (df.HEIGHT >= SIDE))
        df = df.orderBy(rand())
        df.repartition(128).write.parquet(output)
    finally:
        spark.stop()
    return Done(site.small * PER_SAMPLE)
