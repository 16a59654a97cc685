"""The parts of fused operators, as they append them in `Operator.expand`."""

from __future__ import annotations

from typing import Any

from foreshape.language.operator.composition import Composition


def activated(of: Composition, x: Any, name: str) -> Any:
    """Return an activation by its name in an attribute; "" and "none" are none, and gelu is its tanh approximation."""
    if name == "gelu":
        return of("gelu", {"approximate": True}, X=x)
    return of("relu", X=x) if name == "relu" else x


def flat(of: Composition, x: Any) -> Any:
    """Return the numbers of a parameter in one dim; None if it is absent."""
    return x if x is None or x.spec.rank == 1 else of("reshape2", {"shape": [-1]}, X=x)[0]


def with_bias(of: Composition, x: Any, bias: Any) -> Any:
    """Return the sum of ``x`` and a bias with one number for each column, if there is a bias."""
    return x if bias is None else of("elementwise_add", {"axis": -1}, X=x, Y=flat(of, bias))


def layer_norm(of: Composition, x: Any, begin: int, scale: Any, bias: Any, epsilon: float) -> Any:
    """Return the layer norm of the dims from ``begin`` on."""
    return of("layer_norm", {"begin_norm_axis": begin, "epsilon": epsilon}, X=x, Scale=flat(of, scale), Bias=flat(of, bias))[0]


def heads_of(of: Composition, projected: Any, heads: int) -> tuple[Any, Any, Any]:
    """Return queries, keys and values, each [batch, heads, steps, numbers of a head], of rows [batch, steps, all of them]."""
    parts = of("reshape2", {"shape": [0, 0, 3, heads, -1]}, X=projected)[0]
    return tuple(of("unbind", {"axis": 0}, X=of("transpose2", {"axis": [2, 0, 3, 1, 4]}, X=parts)[0]))


def attention(of: Composition, query: Any, key: Any, value: Any, mask: Any, scale: float) -> Any:
    """Return softmax(scale * query key' + mask) value of each head, [batch, steps, numbers of all heads]."""
    scores = of("scale", {"scale": scale}, X=of("matmul_v2", {"trans_y": True}, X=query, Y=key))
    if mask is not None:
        scores = of("elementwise_add", {"axis": -1}, X=scores, Y=mask)
    out = of("matmul_v2", X=of("softmax", {"axis": -1}, X=scores), Y=value)
    return of("reshape2", {"shape": [0, 0, -1]}, X=of("transpose2", {"axis": [0, 2, 1, 3]}, X=out)[0])[0]
