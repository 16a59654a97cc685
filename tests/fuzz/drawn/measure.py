"""How far two computations of one program may be apart: their rounding, as this program amplifies it.

The reference is torch in float64. What rounding does to a program is measured with torch too: the same in float32 (for a float32 run), and
with inputs and parameters changed by a little. An update divides gradients by their size, a maximum or a kink chooses: so a program may amplify
by many orders, and is then compared only as far as that goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from drawn.in_torch import Ran, Runner
from drawn.program import Program

EXACT = {"fp64": 1e-9, "fp32": 5e-5}
"""Of the size of the values (1 at least): that far apart is near enough for any program."""
CHANGES = {"fp64": (1e-13, 1e-11, 1e-9), "fp32": (1e-6, 1e-5, 1e-4)}
"""By how much inputs and parameters are changed, relatively, to see what rounding does."""
ROUNDING = {"fp64": 1e-17, "fp32": 1e-8}
"""What a gradient may be off that is zero but for rounding, of a loss near 1; optimizers that divide by its size make much of it."""
FACTOR = 32.0
JUMP = 50.0
"""A larger change of what goes in counts where values move by so much more than in proportion: at a kink, a choice, a quotient of rounding."""
LARGEST = 1e6


@dataclass
class Reference:
    """A program in float64, and how its values move where what goes in moves a little."""

    program: Program
    trained: Mapping[str, bool]
    rates: Sequence[float]
    ran: Ran

    def moved(self, change: float, seed: int) -> Ran:
        """Run again with what goes in changed."""
        return Runner(self.program, self.trained, self.rates, noise=_noise(change, seed)).run()

    def apart(self, seen: Mapping[str, Any], dtype: str) -> str | None:
        """What is too far from the reference; None where all is near.

        Args:
            seen: the fetched values of each run, as "0/7", and the parameters, by name.
        """
        wanted = flat(self.ran)
        far = [n for n, v in seen.items() if n in wanted and distance(v, wanted[n]) > EXACT[dtype]]
        if not far:
            return None
        allowed, usual = dict.fromkeys(far, EXACT[dtype]), dict.fromkeys(far, 0.0)
        for change, trial in self._trials(dtype):
            other = flat(trial())
            for n in far:
                moved = distance(other[n], wanted[n])
                if change <= CHANGES[dtype][0]:
                    usual[n] = max(usual[n], moved)
                elif moved < JUMP * usual[n] * change / CHANGES[dtype][0]:
                    continue  # in proportion: that says nothing new
                allowed[n] = max(allowed[n], FACTOR * moved)
            far = [n for n in far if distance(seen[n], wanted[n]) > allowed[n]]
            if not far:
                return None
        return "; ".join(f"{n} is {distance(seen[n], wanted[n]):.2g} apart, and {allowed[n]:.2g} is allowed" for n in far)

    def _trials(self, dtype: str) -> Iterator[tuple[float, Callable[[], Ran]]]:
        """By how much what goes in is changed, and the run; 0 is rounding itself, in float32."""
        if dtype == "fp32":
            yield 0.0, Runner(self.program, self.trained, self.rates, torch.float32).run
        for seed in range(4):
            shift = _shift(ROUNDING[dtype], seed)
            yield 0.0, Runner(self.program, self.trained, self.rates, gradient_noise=shift).run
        for change in CHANGES[dtype]:
            for seed in range(4):
                yield change, lambda: self.moved(change, seed)  # noqa: B023  is called before the next


def distance(a: Any, b: Any) -> float:
    """The largest difference, relative to the largest number where that is above 1."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if x.size != y.size:
        return float("inf")
    if not x.size:
        return 0.0
    found = float(np.abs(x.reshape(-1) - y.reshape(-1)).max() / max(1.0, float(np.abs(y).max())))
    return found if np.isfinite(found) else float("inf")


def flat(of: Any) -> dict[str, Any]:
    """The fetched values of each run, as "0/7", and the parameters, by name."""
    return {**{f"{at}/{n}": v for at, one in enumerate(of.fetched) for n, v in one.items()}, **of.state}


def is_tame(of: Ran) -> bool:
    """Whether all numbers are finite and none is huge."""
    return all(np.isfinite(v).all() and (not np.size(v) or np.abs(v).max() < LARGEST) for v in map(np.asarray, flat(of).values()))


def _noise(change: float, seed: int) -> Callable[[Any], Any]:
    generator = torch.Generator().manual_seed(seed)
    return lambda x: x * (1.0 + change * torch.randn(x.shape, generator=generator, dtype=x.dtype))


def _shift(size: float, seed: int) -> Callable[[Any], Any]:
    """Moves what is not exactly zero: rows that nobody looked up stay."""
    generator = torch.Generator().manual_seed(seed)
    return lambda x: x + size * (x != 0) * torch.randn(x.shape, generator=generator, dtype=x.dtype)
