"""XXH64 of rows (Collet, 2014): 64-bit words are int64 here, whose sums and products wrap round."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

PRIMES = (-7046029288634856825, -4417276706812531889, 1609587929392839161, -8796714831421723037, 2870177450012600261)


def shifted_right(x: Tensor, count: int) -> Tensor:
    """Return ``x >> count`` of numbers without a sign."""
    return (x >> count) & ((1 << (64 - count)) - 1)


def rotated(x: Tensor, count: int) -> Tensor:
    """Return the bits moved up, those beyond the end at the beginning."""
    return (x << count) | shifted_right(x, 64 - count)


def mixed(state: Tensor | int, word: Tensor) -> Tensor:
    """Return a state with a word."""
    return rotated(word * PRIMES[1] + state, 31) * PRIMES[0]


def xxhash64(words: Sequence[Tensor], half: Tensor | None, seeds: Tensor) -> Tensor:
    """Return the hashes of 64-bit words, and of a half word behind them, for each of the seeds."""
    first, second, third, fourth, fifth = PRIMES
    striped = len(words) - len(words) % 4
    out = seeds + fifth
    if striped:
        states = [seeds + first + second, seeds + second, seeds, seeds - first]
        for number, word in enumerate(words[:striped]):
            states[number % 4] = mixed(states[number % 4], word)
        out = rotated(states[0], 1) + rotated(states[1], 7) + rotated(states[2], 12) + rotated(states[3], 18)
        for state in states:
            out = (out ^ mixed(0, state)) * first + fourth
    out = out + (8 * len(words) + (4 if half is not None else 0))
    for word in words[striped:]:
        out = rotated(out ^ mixed(0, word), 27) * first + fourth
    if half is not None:
        out = rotated(out ^ (half * first), 23) * second + third
    out = (out ^ shifted_right(out, 33)) * second
    out = (out ^ shifted_right(out, 29)) * third
    return out ^ shifted_right(out, 32)


def row_hashes(x: Tensor, count: int, modulus: int) -> Tensor:
    """Return for each row of whole numbers ``count`` numbers below ``modulus``: the hashes of its bytes with the seeds 0, 1 and so on, ``[rows, count, 1]``."""
    if not x.shape[0]:
        return x.new_empty((0, count, 1))
    half = None
    if x.dtype is torch.int64:
        words = list(x.unsqueeze(-1).unbind(1))
    else:
        halves = (x.long() & 0xFFFFFFFF).unsqueeze(-1).unbind(1)
        words = [low | (high << 32) for low, high in zip(halves[::2], halves[1::2], strict=False)]
        half = halves[-1] if len(halves) % 2 else None
    out = xxhash64(words, half, torch.arange(count, device=x.device).expand(x.shape[0], count))
    return ((shifted_right(out, 1) % modulus * 2 + (out & 1)) % modulus).to(x.dtype).unsqueeze(-1)
