"""The facts of a kernel's place besides its tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from foreshape.core.data_class import data_class
from foreshape.core.spec import DType


@data_class(eq=False)
class Use:
    """One use of an operator in a compiled step, for a kernel with the keyword-only parameter ``use``."""

    names: Mapping[str, Sequence[str]]
    """The variables in its slots."""
    data_types: Mapping[str, Sequence[DType | None]]
    """The element types of the variables in the slots of its results; None without one, or for unrequested ones."""
    runs: int = 0
    """The number of the kernel's runs at this place, counted by the kernel itself."""
