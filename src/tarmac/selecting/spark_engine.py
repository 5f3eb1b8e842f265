"""Run queries on Spark: on this machine, or on a cluster that shares the directory of working files."""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tarmac.errors import EngineError, UsageError
from tarmac.jobs.engines import make_engine
from tarmac.selecting.dialect import SPARK
from tarmac.selecting.query import FILE, ROW
from tarmac.selecting.sqlerrors import BadEncodingError, as_filter, as_value, condition_failed

if TYPE_CHECKING:
    import pyarrow as pa

    from tarmac.selecting.tables import Table, Tables

BATCH = 65_536
_PATTERN, _ESCAPED = re.compile(r"[][{}*?\\]"), r"\\\g<0>"
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
}


class SparkQueries:
    """A session of Spark."""

    dialect = SPARK
    keeps_order = False
    """Tables are read in an order of Spark's own."""

    def __init__(self, directory: str, engine: str, jobs: int) -> None:
        from pyspark.sql import SparkSession

        self._directory, self._stack = directory, contextlib.ExitStack()
        spark: Any = make_engine(engine, jobs)  # which knows how to reach a cluster
        context, _ = self._stack.enter_context(spark.context())
        self._session: Any = SparkSession(context)
        self._sorted = self._links = 0
        for name, value in self._changed().items():
            self._stack.callback(self._restore, name, value)

    def _changed(self) -> dict[str, str | None]:
        """Change settings of the session; return what they were."""
        before = {name: self._session.conf.get(name, None) for name in _SETTINGS}
        for name, value in _SETTINGS.items():
            self._session.conf.set(name, value)
        return before

    def _restore(self, name: str, value: str | None) -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._session.conf.unset(name) if value is None else self._session.conf.set(name, value)

    def close(self) -> None:
        """End the session if it was started here."""
        self._stack.close()

    def keep_order(self, keep: bool) -> None:
        """Do nothing: queries sort."""

    def add_tables(self, view: str, tables: Tables, *, positions: bool) -> None:
        """Make tables known under a name, with the types of their common schema."""
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        groups: dict[Any, list[tuple[int, Table]]] = {}
        for number, table in enumerate(tables.tables):
            groups.setdefault(number if positions else str(table.schema), []).append((number, table))
        frames = []
        for group in groups.values():
            schema = group[0][1].schema
            frame = self._session.read.parquet(*(self._readable(table.path) for _, table in group))
            columns = []
            for each in tables.schema:
                name = SPARK.name(each.name)
                same = schema.field(each.name).type == each.type
                columns.append(F.expr(name if same else SPARK.cast(name, each.type)).alias(each.name))
            if positions:
                columns += [F.lit(group[0][0]).alias(FILE), F.col("_metadata.row_index").alias(ROW)]
            frames.append(frame.select(*columns))
        union = frames[0]
        for frame in frames[1:]:
            union = union.unionAll(frame)
        union.createOrReplaceTempView(view)
        self._check_encoding(view, [each.name for each in tables.schema if str(each.type) == "string"])

    def _readable(self, path: str) -> str:
        """Return the name of a file as Spark reads it: it would expand patterns, and ignore hidden files."""
        if os.path.basename(path).startswith(("_", ".")):
            self._links += 1
            link = os.path.join(self._directory, f"link-{self._links}.parquet")
            os.symlink(path, link)
            path = link
        return f"file://{_PATTERN.sub(_ESCAPED, path)}"

    def _check_encoding(self, view: str, names: Sequence[str]) -> None:
        """Raise if text is not UTF-8, which Spark would pass on."""
        if not names or not self._session.catalog.functionExists("is_valid_utf8"):
            return
        invalid = " OR ".join(f"NOT is_valid_utf8({SPARK.name(name)})" for name in names)
        if self.fetch(f"SELECT 1 FROM {view} WHERE {invalid} LIMIT 1"):
            raise BadEncodingError(view)

    def add_view(self, view: str, query: str) -> None:
        """Make a query known under a name."""
        with self._errors():
            self._session.sql(query).createOrReplaceTempView(view)

    def check_condition(self, condition: str, view: str, columns: Sequence[str]) -> None:
        """Raise if a condition is invalid."""
        from pyspark.errors import AnalysisException, ParseException

        log = logging.getLogger("SQLQueryContextLogger")  # which prints what is raised
        disabled, log.disabled = log.disabled, True
        try:
            (field,) = self._session.sql(as_value(condition, view)).schema.fields
            kind = field.dataType.simpleString()
            if kind not in ("boolean", "void"):
                raise UsageError(f"expected a condition, got {kind} values.", field="where")
            self._session.sql(as_filter(condition, view))
        except (AnalysisException, ParseException) as error:
            raise condition_failed(error, condition, columns) from None
        finally:
            log.disabled = disabled

    def fetch(self, query: str) -> list[tuple[Any, ...]]:
        """Return all rows of a small result."""
        with self._errors():
            return [tuple(row) for row in self._session.sql(query).collect()]

    def batches(self, query: str) -> Iterator[pa.RecordBatch]:
        """Have Spark write the sorted rows, and yield them in order."""
        import pyarrow.parquet as pq

        path = os.path.join(self._directory, f"sorted-{self._sorted}")
        self._sorted += 1
        try:
            with self._errors():
                self._session.sql(query).write.parquet(f"file://{path}")
            for part in sorted(glob.glob(f"{glob.escape(path)}/part-*.parquet")):
                with pq.ParquetFile(part) as file:
                    yield from (batch for batch in file.iter_batches(BATCH) if batch.num_rows)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            yield
        except (PySparkException, Py4JError) as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            reason = next(
                (line for line in lines if re.search(r"Exception|Error|\[[A-Z_.]+\]", line)),
                "no reason given",
            )
            raise EngineError(f"Spark cannot run the query: {reason[:300].rstrip('.')}.") from error
