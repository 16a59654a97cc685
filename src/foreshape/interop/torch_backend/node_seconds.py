"""The time of a node on one thread, by estimate: its multiplications, and the bytes read and written."""

from __future__ import annotations

import math
from typing import Any, Final

from foreshape.interop.torch.untyped_torch import is_list, torch
from foreshape.interop.torch_backend.traced_call import hinted, is_view, work_of_node

_CALL: Final = 3e-6
"""The seconds of a call of a small kernel."""
_MULTIPLICATIONS: Final = 8e10
"""The multiplications of large products in a second."""
_BYTES: Final = 3e10
"""The bytes in a second of the quickest operators for each element."""
_QUICKEST: Final = "add cat gelu hardswish hardtanh mean mul native_group_norm relu sigmoid silu sub sum"
_SLOW: Final = {"native_layer_norm": 3, "clone": 3, "_native_batch_norm_legit_functional": 5, "pow": 6, "tanh": 8, "avg_pool2d": 10}
_SLOWEST: Final = {"upsample_bilinear2d": 12, "upsample_nearest2d": 12, "adaptive_max_pool2d": 16, "max_pool2d_with_indices": 35, "max_pool3d_with_indices": 80}
_SLOWER: Final = {**dict.fromkeys(_QUICKEST.split(), 1), **_SLOW, **_SLOWEST}
"""The times of kernels for their bytes, by those of the quickest, as measured on one thread."""
_OTHERS: Final = 2
"""The same for other operators."""


def seconds_of(node: Any) -> float:
    """Return the time of a node."""
    value = node.meta.get("val")
    if is_view(node.target) or getattr(node.target, "__name__", "") == "getitem":
        return 0.0
    tensors: list[Any] = [item for item in (value if is_list(value) else [value]) if isinstance(item, torch.Tensor)]
    tensors += [item.meta["val"] for item in node.all_input_nodes if isinstance(item.meta.get("val"), torch.Tensor)]
    name = str(getattr(getattr(node.target, "_schema", None), "name", "")).removeprefix("aten::")
    work = work_of_node(node)
    slower = 1 if work is not None else _SLOWER.get(name, _OTHERS)
    return _CALL + (work or 0) / _MULTIPLICATIONS + slower * sum(map(nbytes_of, tensors)) / _BYTES


def nbytes_of(tensor: Any) -> int:
    """Return the bytes of one of torch's tensors without numbers, at the example's sizes."""
    return math.prod(map(hinted, tensor.shape)) * tensor.element_size()
