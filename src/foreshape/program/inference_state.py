"""The inference of a program, as the program knows it: its state, and the verbs that `foreshape.infer.inference` implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from foreshape.program.guards import Guards

if TYPE_CHECKING:
    from foreshape.errors import DescriptionError
    from foreshape.program.block import Block
    from foreshape.program.op import Op
    from foreshape.program.program import Program
    from foreshape.program.variable import Variable
    from foreshape.spec import Spec


class InferenceState(ABC):
    """What is known of the sizes of a program, and whether that is still so.

    Attributes:
        guards: demands that stay open until values are fed.
        stale: whether the ops have changed since they were inferred, or were read from a file.
        uncertain: whether an op has an operator that is not known here, so that specs may be unknown.
        doubtful: variables around a block that turned out not to be known while the block is inferred.
        entry_specs: variable -> the spec with which it comes into a run, where an op writes it again with other dims.
        walk: the inference of the outermost op that runs a block, while that goes on.
    """

    __slots__ = ("doubtful", "entry_specs", "guards", "program", "stale", "uncertain", "walk")

    def __init__(self, program: Program) -> None:
        self.program = program
        self.guards = Guards()
        self.stale = False
        self.uncertain = False
        self.doubtful: set[Variable] | None = None
        self.entry_specs: dict[Variable, Spec] = {}
        self.walk: Any = None

    @staticmethod
    @abstractmethod
    def infer(block: Block, op: Op, make: bool = False, prefix: str | None = None) -> None:
        """Set the specs of an op's results; see `foreshape.infer.op_inference`."""

    @abstractmethod
    def diagnose(self, stop_at: int) -> tuple[list[Op], list[DescriptionError]]:
        """Infer all ops; return those whose operator is not known, and the errors of others."""

    @abstractmethod
    def forget(self) -> None:
        """Drop what was inferred, and keep what the program says."""
