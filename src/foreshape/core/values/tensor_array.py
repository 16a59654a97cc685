"""`TensorArray`: the run-time value of a LOD_TENSOR_ARRAY variable, a growing list of tensors."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import ExecutionError

MAX_LENGTH = 1 << 24
"""The most elements: a position past this is an index gone wrong."""


class TensorArray:
    """Elements by position, each with its offsets if ragged (else None). An unwritten position is None.

    ``empty`` is an element without rows, if known: it stands for an array without elements.
    """

    __slots__ = ("empty", "offsets", "tensors")

    def __init__(self, empty: tuple[Tensor, Offsets | None] | None = None) -> None:
        self.tensors: list[Tensor | None] = []
        self.offsets: list[Offsets | None] = []
        self.empty = empty

    @staticmethod
    def of(tensors: Sequence[Tensor | None], offsets: Sequence[Offsets | None] | None = None) -> TensorArray:
        """Return the array of these elements."""
        out = TensorArray()
        out.tensors = list(tensors)
        out.offsets = list(offsets) if offsets is not None else [None] * len(out.tensors)
        return out

    def __len__(self) -> int:
        return len(self.tensors)

    def write(self, index: int, tensor: Tensor, offsets: Offsets | None = None) -> None:
        """Set the element at a position, and lengthen the array to it. Raise `ExecutionError` for an impossible position."""
        if not 0 <= index < MAX_LENGTH:
            raise ExecutionError.must("a position in an array", f"from 0 to {MAX_LENGTH - 1}", index)
        missing = index + 1 - len(self.tensors)
        if missing > 0:
            self.tensors += [None] * missing
            self.offsets += [None] * missing
        self.tensors[index], self.offsets[index] = tensor, offsets

    def read(self, index: int) -> tuple[Tensor, Offsets | None]:
        """Return the element at a position. Raise `ExecutionError` if nothing was written."""
        tensor = self.tensors[index] if 0 <= index < len(self.tensors) else None
        if tensor is None:
            raise ExecutionError(f"nothing was written at position {index} of this array; it has {len(self.tensors)} positions")
        return tensor, self.offsets[index]

    def whole(self) -> list[Tensor]:
        """Return all elements. Raise `ExecutionError` if one is missing."""
        return [self.read(index)[0] for index in range(len(self.tensors))]

    # --- arrays of gradients: nothing at a position stands for zeros

    def add(self, index: int, tensor: Tensor) -> None:
        """Add to the element at a position, or set it."""
        previous = self.get(index)
        self.write(index, tensor if previous is None else previous + tensor)

    def get(self, index: int) -> Tensor | None:
        """Return the element at a position."""
        return self.tensors[index] if 0 <= index < len(self.tensors) else None

    def take(self, index: int) -> Tensor | None:
        """Return the element at a position, and clear it."""
        out = self.get(index)
        if out is not None:
            self.tensors[index] = self.offsets[index] = None
        return out

    def move_to(self, target: TensorArray) -> None:
        """Add each element to another array's, and take it out."""
        for index in range(len(self)):
            part = self.take(index)
            if part is not None:
                target.add(index, part)

    def copy(self) -> TensorArray:
        """Return the same elements in another array."""
        out = TensorArray.of(self.tensors, self.offsets)
        out.empty = self.empty
        return out

    clone = copy
    """The name of the method of tensors."""
