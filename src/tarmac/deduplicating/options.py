"""The options of a deduplication, which check themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tarmac.arguments import check_count, check_share, check_text
from tarmac.deduplicating.pairs import MOST
from tarmac.deduplicating.shingles import Cutter
from tarmac.errors import UsageError

Keep = Literal["first", "largest", "score"]
KEEP = ("first", "largest", "score")
SHINGLE = "chars:5"
VECTORS, TEXTS = 0.96, 0.8
"""The default thresholds: the cosine of vectors, and the Jaccard similarity of texts."""


@dataclass(frozen=True)
class Options:
    """What is compared, what counts as near, and what stays."""

    threshold: float | None = None
    keep: Keep | None = None
    score: str | None = None
    kind: str | None = None
    text: str | None = None
    shingle: str | None = None
    max_pairs: int = MOST

    def __post_init__(self) -> None:
        check_share("threshold", self.least, "a similarity")
        check_text("text", self.text, "the name of a column or a field")
        check_text("score", self.score, "the name of a column")
        check_text("shingle", self.shingle, "chars:N or words:N")
        if self.keep is not None and self.keep not in KEEP:
            choices = ", ".join(map(repr, KEEP))
            raise UsageError(f"expected one of {choices}, got {self.keep!r}.", field="keep")
        if self.preferred == "score" and not self.score:
            what = "the best score stays, but no column is given."
            raise UsageError(what, field="keep", hint="`score`, the name of a column.")
        if self.score and self.preferred != "score":
            what = f"{self.score!r} has no effect with `keep` {self.keep}."
            raise UsageError(what, field="score", hint="`score` without `keep`.")
        check_count("max_pairs", self.max_pairs, 1)
        if self.shingle is not None and self.text is None:
            what = f"{self.shingle!r} has no effect, as vectors are compared."
            raise UsageError(what, field="shingle", hint="`text`, what to compare instead.")
        if self.kind is not None and self.text is not None:
            what = f"{self.kind!r} has no effect, as texts are compared."
            raise UsageError(what, field="kind", hint="`kind` without `text`.")
        _ = self.cutter

    @property
    def least(self) -> float:
        """Return the smallest similarity of two samples that are near each other."""
        return self.threshold if self.threshold is not None else TEXTS if self.text else VECTORS

    @property
    def compared(self) -> dict[str, str | None]:
        """Return what decides which samples are near each other, besides the threshold."""
        return {"kind": self.kind, "text": self.text, "shingle": self.pieces if self.text else None}

    @property
    def preferred(self) -> Keep:
        """Return which sample of a group stays."""
        return self.keep or ("score" if self.score else "first")

    @property
    def pieces(self) -> str:
        """Return how texts are cut into pieces, as text."""
        return SHINGLE if self.shingle is None else self.shingle

    @property
    def cutter(self) -> Cutter:
        """Return how texts are cut into pieces."""
        return Cutter.parse(self.pieces)
