"""The bases of the computations in `foreshape.language.operator.computations`."""

from __future__ import annotations

from typing import ClassVar

from foreshape.core.data_class import data_class


@data_class(frozen=True)
class Computation:
    """The base of them all. Operands and results are told by their places in the schema: ``X0``, ``X1``, ``Out0``."""

    operands: ClassVar[int] = 1
    """The number of operands: the first ones. An op with more computes something else."""
    inputs: ClassVar[tuple[str, ...]] = ()
    """The input slots of the gradient operator."""
    gives: ClassVar[tuple[str, ...]] = ("X0@GRAD",)
    """Its output slots."""
    forward_only: ClassVar[bool] = False
    """No rewrite asks for the gradient of it."""
    besides: ClassVar[tuple[str, ...]] = ()
    """Further operands of an operator. Rewrites of gradients check for them."""


@data_class(frozen=True)
class ForwardOnly(Computation):
    """The base of computations without rewrites of their gradients."""

    forward_only: ClassVar[bool] = True
