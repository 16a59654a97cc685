"""Networks of torch as programs, by torch.export.

`exporting` makes the graph, `torch_importer` goes through it, and the functions of the files ``aten_*`` write each of ATen's operators with ours;
`aten_rules` finds them by name. `torch_model` is the network, called as the module is.
"""

from __future__ import annotations

from foreshape.interop.torch import (
    aten_activations,
    aten_complex,
    aten_elementwise,
    aten_indexing,
    aten_layers,
    aten_linear_algebra,
    aten_losses,
    aten_pools,
    aten_random,
    aten_reductions,
    aten_shapes,
    higher_order,
)
from foreshape.interop.torch.torch_model import TorchModel, from_torch

_FAMILIES = (
    aten_activations,
    aten_complex,
    aten_elementwise,
    aten_indexing,
    aten_layers,
    aten_linear_algebra,
    aten_losses,
    aten_pools,
    aten_random,
    aten_reductions,
    aten_shapes,
    higher_order,
)
"""The modules of functions: their import fills the registry."""
__all__ = ["TorchModel", "from_torch"]
