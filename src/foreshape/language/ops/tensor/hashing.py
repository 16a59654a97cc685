"""Hashes: rows of numbers to a few pseudorandom numbers."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.core.dims import Size
from foreshape.core.spec import INDEX, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import require_rank
from foreshape.language.operator.samples import i32, i64, sample


def _signed(n: int) -> int:
    return n - (1 << 64) if n >> 63 else n


_PRIMES = tuple(_signed(p) for p in (11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261))
_STRIPE = 4
"""The words of 64 bits taken in together."""


def _shifted(x: Tensor, count: int) -> Tensor:
    """Return ``x >> count`` for unsigned numbers."""
    return (x >> count) & ((1 << (64 - count)) - 1)


def _rotated(x: Tensor, count: int) -> Tensor:
    return (x << count) | _shifted(x, 64 - count)


def _taken_in(state: Tensor | int, word: Tensor) -> Tensor:
    return _rotated(word * _PRIMES[1] + state, 31) * _PRIMES[0]


def xxhash64(words: Sequence[Tensor], half: Tensor | None, seeds: Tensor) -> Tensor:
    """Return XXH64 (Collet, 2014; XXH64 of the xxHash specification) of 64-bit words and a half word after them, for each of the seeds."""
    size = 8 * len(words) + (4 if half is not None else 0)
    first, second, third, fourth, fifth = _PRIMES
    striped = len(words) - len(words) % _STRIPE
    if striped:
        states: list[Tensor] = [seeds + first + second, seeds + second, seeds, seeds - first]
        for index in range(striped):
            states[index % _STRIPE] = _taken_in(states[index % _STRIPE], words[index])
        out = sum((_rotated(s, count) for s, count in zip(states[1:], (7, 12, 18), strict=True)), start=_rotated(states[0], 1))
        for state in states:
            out = (out ^ _taken_in(0, state)) * first + fourth
    else:
        out = seeds + fifth
    out = out + size
    for word in words[striped:]:
        out = _rotated(out ^ _taken_in(0, word), 27) * first + fourth
    if half is not None:
        out = _rotated(out ^ (half * first), 23) * second + third
    out = (out ^ _shifted(out, 33)) * second
    out = (out ^ _shifted(out, 29)) * third
    return out ^ _shifted(out, 32)


class Hash(Operator):
    """Out = for each row of X ``num_hash`` numbers below ``mod_by``: XXH64 of the row's bytes, with the seeds 0, 1, ..., modulo ``mod_by``."""

    type = "hash"
    examples = ("X",)
    X = operand(INDEX, doc="[rows, columns]")
    Out = result(layout="row", doc="[rows, num_hash, 1], of the element type of X")
    num_hash = attribute(AttrType.INT, 1, low=1)
    mod_by = attribute(AttrType.INT, 100000, low=1)
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, X: Spec) -> Spec:
        require_rank(2, X, "X")
        return X.with_dims((X.known_dims[0], self.num_hash, 1))

    def workspace(self, X: Spec) -> Size:
        return 16 * X.elements + 128 * X.known_dims[0] * self.num_hash

    def kernel(self, X: Tensor) -> Tensor:
        if not X.shape[0]:
            return X.new_empty((0, self.num_hash, 1))
        half = None
        if X.dtype is torch.int64:
            words = list(X.unsqueeze(-1).unbind(1))
        else:
            halves = (X.long() & 0xFFFFFFFF).unsqueeze(-1).unbind(1)
            words = [low | (high << 32) for low, high in zip(halves[::2], halves[1::2], strict=False)]
            half = halves[-1] if len(halves) % 2 else None
        seeds = torch.arange(self.num_hash, device=X.device).expand(X.shape[0], self.num_hash)
        out = xxhash64(words, half, seeds)
        left = (_shifted(out, 1) % self.mod_by * 2 + (out & 1)) % self.mod_by
        return left.to(X.dtype).unsqueeze(-1)

    samples = [
        sample(X=i64(3, 2, low=-9, high=9), num_hash=4, mod_by=1000),
        sample(X=i32(5, 1).ragged([2, 3]), num_hash=2, mod_by=2**31 - 1),
        sample(X=i32(3, 7, low=-9, high=9), num_hash=2, mod_by=97),
        sample(X=i64(2, 9, low=-9, high=9), num_hash=3, mod_by=2**31 - 1),
        sample(X=i32(2, 11, low=-9, high=9)),
        sample(X=i64(0, 3), num_hash=2),
    ]
