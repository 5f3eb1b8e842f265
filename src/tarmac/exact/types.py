"""Types that datasets and loaders share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    # torch's DataLoader is annotated with its own Dataset class; at run time torch is not needed.
    from torch.utils.data.dataset import Dataset
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True, default=Any)
    Batch_co = TypeVar("Batch_co", covariant=True, default=Any)
else:
    from typing import Generic as Dataset
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)
    Batch_co = TypeVar("Batch_co", covariant=True)

MapStyle = Dataset
U = TypeVar("U")

Rows = NDArray[np.int32]
"""Row numbers in one shard, kept for whole datasets and therefore small."""
