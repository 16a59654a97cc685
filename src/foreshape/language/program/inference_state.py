"""The inference of a program, as seen by the program: its state, and the methods implemented by `foreshape.language.infer.inference`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from foreshape.core.spec import Spec
from foreshape.errors import DescriptionError
from foreshape.language.program.block import Block
from foreshape.language.program.guards import Guards
from foreshape.language.program.op import Op
from foreshape.language.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.language.program.program import Program


class InferenceState(ABC):
    """The known sizes of a program, and their validity.

    Attributes:
        guards: demands left open until values are fed.
        stale: True if the ops have changed since their inference, or were read from a file.
        uncertain: True if an operator is unknown here, so that specs may be unknown.
        doubtful: variables around a block found to be unknown during the inference of the block.
        entry_specs: variable -> its spec at the beginning of a run, if an op writes it again with other dims.
        walk: the inference of the outermost op with a block, while it runs.
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
        """Set the specs of an op's results; see `foreshape.language.infer.op_inference`."""

    @abstractmethod
    def diagnose(self, stop_at: int) -> tuple[list[Op], list[DescriptionError]]:
        """Infer all ops; return the ops of unknown operators, and the errors of others."""

    @abstractmethod
    def forget(self) -> None:
        """Drop inferred facts, and keep the declared ones."""
