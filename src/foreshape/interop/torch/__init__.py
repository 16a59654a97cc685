"""Networks of torch as programs, by torch.export.

`exporting` makes the graph, `torch_importer` goes through it, and the functions of the files ``aten_*`` write each of ATen's operators with ours;
`aten_rules` finds them by name. `module_import` does it all for a module, and `torch_model` is the network, called as the module is. And programs as
modules of torch: `to_torch`.
"""

from __future__ import annotations

from foreshape.interop.families import import_families
from foreshape.interop.torch.to_torch import to_torch
from foreshape.interop.torch.torch_model import TorchModel, from_torch

import_families(__name__, __path__, "aten")
__all__ = ["TorchModel", "from_torch", "to_torch"]
