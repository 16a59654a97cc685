"""Activations as oneDNN appends them to a product: by a name, and two numbers that mean something else to each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreshape.values.torch_proxy import F, torch

if TYPE_CHECKING:
    from torch import Tensor

ONEDNN_ACTIVATIONS = (
    "", "abs", "clip", "gelu", "gelu_erf", "gelu_tanh", "hard_sigmoid", "hard_swish", "leaky_relu", "mish", "relu", "relu6", "sigmoid", "sqrt",
    "swish", "tanh",
)  # fmt: skip
ALPHA = "of relu and leaky_relu: the slope below 0; of clip and relu6: the least; of swish, hard_swish and hard_sigmoid: the factor inside"
BETA = "of clip and relu6: the most; of hard_swish and hard_sigmoid: the summand inside"


def by_onednn(x: Tensor, name: str, alpha: float, beta: float) -> Tensor:
    """``x`` with an activation, in its own memory where that can be."""
    if not name:
        return x
    if name in ("relu", "leaky_relu"):
        return F.leaky_relu_(x, alpha)
    if name in ("clip", "relu6"):
        return x.clamp_(alpha, beta)
    if name == "hard_sigmoid":
        return x.mul_(alpha).add_(beta).clamp_(0.0, 1.0)
    if name == "hard_swish":
        return x.mul_((x * alpha).add_(beta).clamp_(0.0, 1.0))
    if name == "swish":
        return x.mul_((x * alpha).sigmoid_())
    if name.startswith("gelu"):
        return F.gelu(x, approximate="tanh" if name == "gelu_tanh" else "none")
    if name == "mish":
        return F.mish(x, inplace=True)
    return {"abs": torch.abs_, "sigmoid": torch.sigmoid_, "sqrt": torch.sqrt_, "tanh": torch.tanh_}[name](x)
