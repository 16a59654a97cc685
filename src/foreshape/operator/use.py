"""What a kernel may know of the place at which it is called, besides its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foreshape.data_class import data_class
from foreshape.spec import DType


@data_class(eq=False)
class Use:
    """One use of an operator in a compiled step, for a kernel with the keyword-only parameter ``use``."""

    names: Mapping[str, Sequence[str]]
    """The variables in its slots."""
    data_types: Mapping[str, Sequence[DType | None]]
    """The element types of the variables in the slots of its results; None of what has none, or is not wanted."""
    runs: int = 0
    """How often the kernel ran at this place, which the kernel itself counts."""
