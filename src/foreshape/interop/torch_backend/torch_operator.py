"""`TorchOperator`: a function of torch, an operator of a graph mostly, as an operator of a program. It runs on torch's own kernel, as in eager torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any, Final
from weakref import WeakValueDictionary

from foreshape.compiler.lowering.call_text import function_of
from foreshape.core.dims import Size
from foreshape.core.spec import EVERY_TYPE, Spec
from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import ExecutionError
from foreshape.language.operator import NOT_WRITTEN, AttrType, Operator, OwnCall, attribute, operand, result
from foreshape.machine.kernels.fused import FusedKernel


@dataclass(slots=True, weakref_slot=True, eq=False)
class TorchFunction:
    """A function of torch with its arguments, but for tensors and open sizes.

    Attributes:
        kernel: its call, of the tensors and then the sizes.
        results: the specs of the resulting tensors, in the symbols of the program.
        places: their places among the results of the call, where it gives several; None where it gives a tensor.
        count: the number of the results of the call.
        work: its multiplications; None where they are not counted.
        number: its name in a program.
    """

    kernel: FusedKernel
    results: tuple[Spec, ...]
    places: tuple[int, ...] | None
    count: int
    work: Size | None = None
    number: int = 0

    def __post_init__(self) -> None:
        self.number = next(_NUMBERS)
        _FUNCTIONS[self.number] = self


_NUMBERS: Final = count(1)
_FUNCTIONS: Final[WeakValueDictionary[int, TorchFunction]] = WeakValueDictionary()


class TorchOperator(Operator):
    """Out = a function of torch of the tensors X; it is known to the process of its trace alone, and no file brings one."""

    type = "torch_operator"
    gradient = NOT_WRITTEN
    X = operand(EVERY_TYPE, many=True, optional=True, doc="the tensors")
    Sizes = operand(EVERY_TYPE, many=True, optional=True, doc="open sizes, as tensors of one number")
    Out = result(many=True, doc="the results, as torch traced them")
    call = attribute(AttrType.STRING, "", doc="the call in words")
    function = attribute(AttrType.INT, 0, doc="its number in this process")

    @cached_property
    def traced(self) -> TorchFunction:
        """The function. Raises `ExecutionError` in another process."""
        function = _FUNCTIONS.get(self.function)
        if function is None:
            raise ExecutionError(f"{self.call} is a function of torch whose graph was traced in another process, or is gone: compile the network again")
        return function

    def infer_shape(self, X: Sequence[Spec], Sizes: Sequence[Spec]) -> Sequence[Spec]:
        return self.traced.results

    @property
    def own_call(self) -> OwnCall:
        """Its call, in the text of a step."""
        function = self.traced
        return OwnCall(function.kernel, function.places, function.count)

    def work(self, X: Sequence[Spec], Sizes: Sequence[Spec]) -> Size | None:
        return self.traced.work

    def kernel(self, X: list[Tensor], Sizes: list[Any]) -> Sequence[Tensor]:
        function = self.traced
        results = function_of(function.kernel, len(X) + len(Sizes))(*X, *Sizes)
        return [results] if function.places is None else [results[index] for index in function.places]


class TorchRandomOperator(TorchOperator):
    """The same with random numbers of torch's own generator, or with effects besides its results: such calls keep their order."""

    type = "torch_random_operator"
    gradient = NOT_WRITTEN
    random = True
    side_effects = True
