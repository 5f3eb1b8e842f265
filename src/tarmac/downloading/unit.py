"""Fetch the rows of a block and prepare their pictures: the network in one thread, the pictures in others."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from tarmac.display import plural
from tarmac.downloading.hashes import bytes_hash, digest, perceptual_hash
from tarmac.downloading.images import Pictures, Rejected, largest_size, prepare
from tarmac.downloading.live import Posting
from tarmac.downloading.network.board import Board
from tarmac.downloading.network.crawl import Crawl, Known, Turn, Visit
from tarmac.downloading.network.fetch import Reply
from tarmac.downloading.network.settings import Web
from tarmac.downloading.rows import boxes_of, text_of
from tarmac.downloading.spool import Spool
from tarmac.downloading.status import DROPPED, SUCCESS
from tarmac.errors import DecodeFailed, ErrorBudgetExceeded
from tarmac.runtime.cores import usable_cores

JUDGED = 200
"""Rows after which a block is judged by how many of them failed."""


@dataclass(frozen=True)
class Work:
    """What happens to the rows of a block."""

    web: Web
    pictures: Pictures
    digest: str = "xxh3"
    exif: bool = True
    max_failed: float = 0.8
    patience: float = 10.0
    turn: Turn = "only"
    board: str = ""
    """The path of what the processes of this machine tell each other."""


@dataclass(slots=True)
class Link:
    """A row that is to be fetched."""

    number: int
    url: Any
    boxes: Any = None
    expected: Any = None
    """The digest that its bytes must have."""


@dataclass
class Fetching:
    """The rows of a block on their way."""

    work: Work
    known: Known
    spool: Spool
    total: int
    statuses: Counter[str] = field(default_factory=Counter)
    live: Callable[[Counter[str], int], None] | None = None

    def run(self, links: Iterator[Link]) -> None:
        """Fetch all rows, and store a result for each. Signals interrupt it: the network has its own thread."""
        self._links: dict[int, Link] = {}
        self._bytes = 0
        done: Future[None] = Future()
        thread = threading.Thread(target=self._in_thread, args=(links, done), name="download", daemon=True)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings(
                    "ignore", category=UserWarning, module="PIL"
                )  # about damaged metadata
                warnings.filterwarnings("ignore", category=RuntimeWarning, module="PIL")
                thread.start()
                done.result()
        except BaseException:
            self._stop()
            raise
        finally:
            thread.join()
        self.spool.upload()

    def _in_thread(self, links: Iterator[Link], done: Future[None]) -> None:
        try:
            with ThreadPoolExecutor(usable_cores(), "pictures") as self._pool:
                asyncio.run(self._main(links))
        except asyncio.CancelledError:
            done.cancel()
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(None)

    def _stop(self) -> None:
        loop, task = getattr(self, "_loop", None), getattr(self, "_task", None)
        if loop is not None and task is not None and not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it has ended meanwhile
                loop.call_soon_threadsafe(task.cancel)

    async def _main(self, links: Iterator[Link]) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        work = self.work
        with Board(work.board) if work.board else contextlib.nullcontext() as board:
            crawl = Crawl(work.web, self.known, self._handle, largest_size, work.patience, work.turn, board)
            posting = None if board is None else Posting(board)
            self.live = posting or self.live
            await crawl.run(self._noted(links), self.work.web.shard_timeout)
            if posting is not None:
                posting.post(self.statuses, self._bytes)

    def _noted(self, links: Iterator[Link]) -> Iterator[tuple[int, Any]]:
        for link in links:
            self._links[link.number] = link
            yield link.number, text_of(link.url)

    async def _handle(self, visit: Visit, reply: Reply) -> None:
        """Store the result of a row."""
        link = self._links.pop(visit.row)
        facts: dict[str, Any] = {"status": reply.status}
        data = b""
        if reply.status == SUCCESS:
            facts, data = await asyncio.get_running_loop().run_in_executor(
                self._pool, self._prepared, reply.body, link
            )
        elif reply.error:
            facts["error_message"] = reply.error
        if reply.http:
            facts["http_status"] = reply.http
        facts |= {"seconds": round(visit.seconds, 3), "requests": visit.requests}
        self._bytes += len(reply.body)
        self.spool.add(visit.row, facts, data)
        self._count(facts["status"], facts.get("error_message", ""))

    def _prepared(self, body: bytes, link: Link) -> tuple[dict[str, Any], bytes]:
        """Prepare a picture, in a thread."""
        work, facts = self.work, {"status": SUCCESS, "bytes": len(body)}
        facts[work.digest] = digest(body, work.digest)
        facts["content_hash"] = bytes_hash(body)
        expected = text_of(link.expected)
        if expected is not None and expected.strip().lower() != facts[work.digest]:
            return facts | {"status": "other_content", "error_message": "the digest differs."}, b""
        try:
            picture = prepare(body, work.pictures, boxes_of(link.boxes), exif=work.exif)
        except Rejected as error:
            return facts | {"status": error.status, "error_message": str(error)}, b""
        except DecodeFailed as error:
            return facts | {"status": "bad_boxes", "error_message": error.what}, b""
        names = ("extension", "width", "height", "original_width", "original_height")
        facts |= {name: getattr(picture, name) for name in names}
        if picture.pixels is not None:
            facts["perceptual_hash"] = perceptual_hash(picture.pixels)
        return facts | ({"exif": picture.exif} if work.exif else {}), picture.data

    def _count(self, status: str, why: str) -> None:
        """Count a result; stop if most rows fail."""
        self.statuses[status] += 1
        failed = {
            name: number for name, number in self.statuses.items() if name != SUCCESS and name not in DROPPED
        }
        number, total = sum(failed.values()), self.statuses.total()
        if total >= JUDGED and number > self.work.max_failed * total:
            reasons = ", ".join(
                f"{each} {name}" for name, each in sorted(failed.items(), key=lambda item: -item[1])[:3]
            )
            self.spool.forget_failures()
            what = f"{number} of {plural(total, 'row')} failed: {reasons}. The last of them: {why}"
            hint = "check the network and the name servers, and run the same command again; or a larger `max_failed`."
            raise ErrorBudgetExceeded(what, hint=hint)
        self.spool.upload_if_due()
        if self.live is not None:
            self.live(self.statuses, self._bytes)
