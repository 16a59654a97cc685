"""Classes as the leaves of binary trees (Morin and Bengio, 2005)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from foreshape.interop.torch.write.helpers.bounds import within


def own_paths(table: Tensor, code: Tensor, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return nodes, codes and the mask of paths, given row by row with negative numbers behind their ends."""
    on = (table >= 0).cumprod(1).bool()
    return within(table * on, nodes, "a node of a path"), code.bool() & on, on


def paths_of_classes(label: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return nodes, codes and the mask of paths in the complete tree: leaf c is at place ``c + classes`` of the heap, its code the bits of this number."""
    place = within(label.reshape(-1, 1), classes, "a class number") + classes
    bits = torch.arange((classes - 1).bit_length(), device=label.device)
    node = (place >> (bits + 1)) - 1
    on = node >= 0
    return node.clamp(min=0), ((place >> bits) & 1).bool() & on, on


def hierarchical_loss(x: Tensor, weight: Tensor, bias: Tensor | None, node: Tensor, code: Tensor, on: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of log(1 + exp(z)) - code * z along paths, z within -40 and 40, and log(1 + exp(z)): log(2) behind the ends."""
    z = (weight[node] @ x.unsqueeze(-1)).squeeze(-1) if node.shape[1] else x.new_zeros(node.shape)
    z = z if bias is None else z + bias.reshape(-1)[node]
    z = z.masked_fill(~on, 0.0).clamp(-40.0, 40.0)
    pre = F.softplus(z, threshold=80.0)
    return (pre - z * code).sum(1, keepdim=True), pre
