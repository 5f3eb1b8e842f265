"""Types that datasets and loaders share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tarmac.runtime.types import Integers

if TYPE_CHECKING:
    # torch's DataLoader is annotated with its own Dataset class; at run time torch is not needed.
    from torch.utils.data.dataset import Dataset as MapStyle
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True, default=Any)
    Batch_co = TypeVar("Batch_co", covariant=True, default=Any)
else:
    from typing import Generic as MapStyle
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)
    Batch_co = TypeVar("Batch_co", covariant=True)

U = TypeVar("U")

__all__ = ["Batch_co", "Integers", "MapStyle", "Rows", "T_co", "U"]

Rows = NDArray[np.int32]
"""Row numbers in one shard, kept for whole datasets and therefore small."""
