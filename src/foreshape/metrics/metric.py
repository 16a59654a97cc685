"""A measure with state."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

from foreshape.errors import SchemaError, ShapeError
from foreshape.language.program import Variable

State: TypeAlias = "dict[str, Any]"
"""Key -> fp64 numbers: ``[n]`` are added over batches and ranks, ``[rows, n]`` are joined."""


class Metric:
    """The base of the measures of a whole set. A class of your own defines the first state, the addition of a batch, and the result.

    Give it to `fs.train` (``metrics=``) or `fs.evaluate` in place of a variable. Batches of any sizes and any number of ranks give the same number.

    Args:
        inputs: variables of one program, fetched of each batch.
    """

    shape: tuple[int, ...] = ()
    """The dims of its value; one of several numbers is as many figures, named by their places: ``"recall 0"``, ``"recall 1"``, ..."""
    ragged: ClassVar[bool] = False
    """True if `add` is given ragged inputs as `LoDTensor`; otherwise it is given their rows."""

    def __init__(self, *inputs: Variable | None) -> None:
        self.inputs = tuple(v for v in inputs if v is not None)
        for variable in self.inputs:
            if not isinstance(variable, Variable):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise SchemaError(f"{type(self).__name__} is of variables, such as layer.softmax gives; seen {variable!r:.60}")
            if variable.block.program is not self.inputs[0].block.program:
                raise SchemaError(f"{type(self).__name__}: {variable.name} is a variable of another program than {self.inputs[0].name}")

    def begin(self) -> State:
        """Return the state before the first batch: fp64 arrays of fixed sizes; ``[0, n]`` if batches add rows."""
        raise NotImplementedError(f"{type(self).__name__} must say what it begins with")

    def add(self, state: State, *arrays: Any) -> None:
        """Add a batch's ``arrays``, one for each of the inputs, to the ``state``."""
        raise NotImplementedError(f"{type(self).__name__} must say what a batch adds")

    def value(self, state: State) -> Any:
        """Return the measure of a ``state``: a number, or an array of ``shape``."""
        raise NotImplementedError(f"{type(self).__name__} must say what its value is")

    def of(self, *arrays: Any) -> Any:
        """Return the measure of ``arrays`` alone, one for each of the inputs."""
        state = self.begin()
        self.add(state, *arrays)
        return self.value(state)


def check_weight(metric: Metric, weight: Variable | None, like: Variable, axis: int | None = None) -> None:
    """Refuse weights other than one for each element of ``like`` without ``axis``, or one for each of its examples."""
    if weight is None:
        return
    dims = list(like.spec.known_dims)
    if axis is not None:
        del dims[axis]
    weight_dims = [d for d in weight.spec.known_dims if d != 1]
    if weight_dims not in ([d for d in dims if d != 1], dims[:1]):
        raise ShapeError(f"{type(metric).__name__}: weight must be one for each example, or of the dims of the label; it is {weight.spec.text()}")
