"""Run linear layers on CPUs in oneDNN instead of MKL, which uses half the vector width of CPUs not made by Intel.

The results differ by rounding alone. Where torch lacks the operation, models stay as they are.
"""

from __future__ import annotations

from functools import partial
from typing import Any


def use_onednn(model: Any) -> None:
    """Change the linear layers of a model of float32 on the CPU."""
    import torch

    operation = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if operation is None or not torch.backends.mkldnn.is_available():
        return
    for module in model.modules():
        # Subclasses may do more, and a module whose weight another one uses keeps it.
        if type(module) is torch.nn.Linear and module.weight.dtype == torch.float32:
            module.forward = partial(_linear, operation, module)


def _linear(operation: Any, module: Any, values: Any) -> Any:
    if not values.numel():
        return type(module).forward(module, values)
    return operation(values, module.weight, module.bias, "none", [], "")
