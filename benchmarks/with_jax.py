"""W9 in JAX, where it is installed: the rows of all texts in one array, and attention between rows of the same text alone, by a mask of their numbers.

The rows are padded to a multiple of 256, so that few sizes are compiled. `build(workload, variant)` gives ``step(i) -> loss``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import workloads

_STEP = 256


def _normalized(x: Any, weight: Any, bias: Any) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * weight + bias


def _scores(w: workloads.Workload, p: dict[str, Any], ids: Any, text: Any, lengths: Any) -> Any:
    width, heads = w.settings["width"], w.settings["heads"]
    h, mask = p["emb"][ids], text[:, None] == text

    def dense(x: Any, k: int, n: str) -> Any:
        return x @ p[f"{k}w{n}"] + p[f"{k}b{n}"]

    for k in range(w.settings["layers"]):
        q, key, value = (dense(h, k, n).reshape(-1, heads, width // heads).transpose(1, 0, 2) for n in "qkv")
        scores = jnp.where(mask, (q * (width // heads) ** -0.5) @ key.transpose(0, 2, 1), -1e30)
        mixed = (jax.nn.softmax(scores) @ value).transpose(1, 0, 2).reshape(-1, width)
        h = _normalized(h + dense(mixed, k, "o"), p[f"{k}g1"], p[f"{k}h1"])
        h = _normalized(h + dense(jax.nn.gelu(dense(h, k, "1"), approximate=False), k, "2"), p[f"{k}g2"], p[f"{k}h2"])
    means = jax.ops.segment_sum(h, text, len(lengths) + 1)[:-1] / lengths[:, None]
    return means @ p["fw"] + p["fb"]


def build(w: workloads.Workload, variant: str) -> Callable[[int], float]:
    """Describe, and put the parameters on the device; returns the step."""
    optimizer, data = optax.adam(w.rate), list[tuple[Any, ...]]()
    for words, lengths, label in w.data:
        ids = np.pad(words, (0, -len(words) % _STEP)).astype(np.int32)
        text = np.full(len(ids), len(lengths), np.int32)
        text[: len(words)] = np.repeat(np.arange(len(lengths)), lengths)
        data.append((ids, text, lengths.astype(np.float32), label))

    def loss_of(p: dict[str, Any], *given: Any) -> Any:
        *of, label = given
        return optax.softmax_cross_entropy_with_integer_labels(_scores(w, p, *of), label).mean()

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(p: Any, state: Any, *given: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(p, *given)
        changes, state = optimizer.update(gradients, state)
        return optax.apply_updates(p, changes), state, loss

    held: list[Any] = [{n: jnp.asarray(v) for n, v in w.parameters.items()}]
    held.append(optimizer.init(held[0]))

    def step(i: int) -> float:
        held[0], held[1], loss = update(*held, *data[i % len(data)])
        return float(loss)

    return step
