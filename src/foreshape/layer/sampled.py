"""Draws from distributions."""

from __future__ import annotations

from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable


def sampling_id(x: Variable, min: float = 0.0, max: float = 1.0, seed: int = 0) -> Variable:
    """Draw a column of each row of ``x`` with its probability.

    Args:
        x: ``[batch, classes]``, each row a distribution.
        min, max: the deciding uniform number is drawn from [min, max).
        seed: draws the same numbers in every step; 0 others each time.

    Returns:
        int64 ``[batch]``.
    """
    return current_block().apply("sampling_id", {"X": x}, {"min": min, "max": max, "seed": seed})


def multinomial(x: Variable, num_samples: int = 1, replacement: bool = False) -> Variable:
    """Return ``num_samples`` columns of each row of ``x`` (int64), drawn with probabilities in proportion to its numbers, none of them negative.

    Args:
        x: floats, ``[rows, columns]`` or ``[columns]``.
        num_samples: the number of draws.
        replacement: a column may be drawn again.
    """
    return current_block().apply("multinomial", {"X": x}, {"num_samples": num_samples, "replacement": replacement})


def bernoulli(x: Variable) -> Variable:
    """Draw 1 with the probability x at each place, else 0; floats of any shape."""
    return current_block().apply("bernoulli", {"X": x})


def poisson(x: Variable) -> Variable:
    """Draw a number of Poisson's distribution for each mean in x; floats of any shape, none negative."""
    return current_block().apply("poisson", {"X": x})


def exponential(x: Variable, rate: float = 1.0) -> Variable:
    """Draw numbers of the exponential distribution, as many as x has.

    Args:
        x: floats of any shape; its numbers are not read.
        rate: one over the mean, above 0.
    """
    return current_block().apply("exponential", {"X": x}, {"lambda": rate})


def dirichlet(x: Variable) -> Variable:
    """Draw numbers that sum to 1 along the last axis from Dirichlet's distribution with the concentrations x, floats ``[..., k]`` above 0."""
    return current_block().apply("dirichlet", {"Alpha": x})
