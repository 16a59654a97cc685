"""oneDNN's activations after a product: by a name, and two numbers with another meaning in each."""

from __future__ import annotations

from typing import Any

from foreshape.language.operator.composition import Composition

ONEDNN_ACTIVATIONS = (
    "", "abs", "clip", "gelu", "gelu_erf", "gelu_tanh", "hard_sigmoid", "hard_swish", "leaky_relu", "mish", "relu", "relu6", "sigmoid", "sqrt",
    "swish", "tanh",
)  # fmt: skip
ALPHA = "for relu and leaky_relu the slope below 0; for clip and relu6 the least; for swish, hard_swish and hard_sigmoid the factor inside"
BETA = "for clip and relu6 the most; for hard_swish and hard_sigmoid the summand inside"


def by_onednn(of: Composition, x: Any, name: str, alpha: float, beta: float) -> Any:
    """Append an activation to ``x``; none if the name is empty."""
    if not name:
        return x
    if name in ("relu", "leaky_relu"):
        return of("leaky_relu", {"alpha": alpha}, X=x) if alpha else of("relu", X=x)
    if name in ("clip", "relu6"):
        return of("clip", {"min": min(alpha, beta), "max": beta}, X=x)
    if name in ("hard_sigmoid", "hard_swish"):
        gate = of("hard_sigmoid", {"slope": alpha, "offset": beta}, X=x)
        return gate if name == "hard_sigmoid" else of("elementwise_mul", X=x, Y=gate)
    if name.startswith("gelu"):
        return of("gelu", {"approximate": name == "gelu_tanh"}, X=x)
    return of(name, {"beta": alpha} if name == "swish" else None, X=x)
