"""Uses of a variable as a value: each is refused with the code to write, since a described network has none yet."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, NoReturn, cast

from foreshape.core.hints import near
from foreshape.errors import NoValueError
from foreshape.language.program.call_site import caller, located
from foreshape.language.program.described import Described
from foreshape.language.program.elsewhere import elsewhere

_FETCH: Final = "fetch it from a run, as fs.Executor().run(program, feed, [{}])"
_OPERATORS: Final[dict[str, tuple[str, str]]] = {
    **{name: (f"__{of}__", f"__r{of}__") for name, of in {
        "add": "add", "subtract": "sub", "multiply": "mul", "divide": "truediv", "true_divide": "truediv", "floor_divide": "floordiv",
        "remainder": "mod", "power": "pow", "matmul": "matmul", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
    }.items()},
    "equal": ("__eq__", "__eq__"), "not_equal": ("__ne__", "__ne__"), "less": ("__lt__", "__gt__"), "less_equal": ("__le__", "__ge__"),
    "greater": ("__gt__", "__lt__"), "greater_equal": ("__ge__", "__le__"),
}  # fmt: skip
"""Numpy's functions behind its operators -> the method of a variable at the left, and at the right."""


class NoValue(Described):
    """The protocols of Python, numpy and PyTorch for values."""

    __slots__ = ()

    def no_value(self, so: str, advice: str = _FETCH) -> NoValueError:
        """Return the error for a use of a value, with the user's line: ``so`` is the impossible, ``advice`` the code instead."""
        hint = advice.format(self.name)
        error = NoValueError(f"{self.name} has no value while the network is described, so that {so}: {hint}")
        located_here = located(error.told(slot=self.name, required="a value", seen=self.spec.text()), caller(_is_torch_or_numpy))
        return cast("NoValueError", located_here)

    # --- numbers

    def __float__(self) -> float:
        raise self.no_value("it is no number for float()")

    def __int__(self) -> int:
        raise self.no_value("it is no number for int()")

    def __complex__(self) -> complex:
        raise self.no_value("it is no number for complex()")

    def __round__(self, digits: int | None = None) -> NoReturn:
        raise self.no_value("round() has no number of it", "layer.round({}) rounds what a run computes")

    def __format__(self, form: str) -> str:
        if form:
            raise self.no_value(f"it cannot be written as {form!r}")
        return str(self)

    def __bool__(self) -> NoReturn:
        hint = "layer.cond and layer.where choose in a run, layer.while_loop repeats"
        op = getattr(self, "op", None)
        if op is not None and op.type in ("equal", "not_equal"):
            hint += "; whether two variables are the same one is asked with `is`, and `in` a list or tuple asks with =="
        raise self.no_value("Python cannot branch on it", hint)

    # --- parts

    def __contains__(self, item: object) -> NoReturn:
        raise self.no_value("Python cannot look for something in it", "use (x == value).any()")

    def __setitem__(self, index: object, value: object) -> NoReturn:
        raise self.no_value("its parts cannot be set in place", "x = layer.setitem(x, index, value) is the variable with other parts")

    # --- numpy and PyTorch

    def __array__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise self.no_value("numpy cannot have it as an array", "use its methods or foreshape.layer, and fetch what they give")

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> NoReturn:
        raise self._elsewhere("np", function.__name__)

    def __array_ufunc__(self, function: Any, method: str, *args: Any, **kwargs: Any) -> Any:
        """Apply the operator behind a function of numpy's, as ``array + x`` calls it; refuse any other."""
        methods = _OPERATORS.get(function.__name__)
        if methods is None or method != "__call__" or len(args) != 2 or kwargs:
            raise self._elsewhere("np", function.__name__)
        left, right = args
        return getattr(left, methods[0])(right) if isinstance(left, NoValue) else getattr(right, methods[1])(left)

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None) -> NoReturn:
        """Refuse a function of PyTorch. An operator of a tensor's leaves its place to the variable then, as for every `TypeError`."""
        variable = _first_of((*args, *(kwargs or {}).values()))
        name = getattr(function, "__name__", "this function")
        raise NoValueError(f"torch.{name} takes tensors, and no variables") if variable is None else variable._elsewhere("torch", name)

    def _elsewhere(self, package: str, name: str) -> NoValueError:
        """Return the error for a function of another package, with its name here."""
        plain = name.strip("_")
        hints: Mapping[str, str] = elsewhere("layer.called_elsewhere:FUNCTION_HINTS")
        method = f"x.{plain}()" if callable(getattr(type(self), plain, None)) else None
        here_it_is = method or hints.get(f"{package}.{plain}") or hints.get(plain)
        if here_it_is is None:
            alike = [hints[n] for n in near(plain, hints)]
            here_it_is = " or ".join(dict.fromkeys(alike)) or "use its methods or foreshape.layer"
        else:
            here_it_is = f"here it is {here_it_is}"
        return self.no_value(f"{package}.{plain} cannot compute with it", here_it_is.replace("{", "{{").replace("}", "}}"))


def _is_torch_or_numpy(file: str) -> bool:
    """Tell whether a file is PyTorch's or numpy's."""
    rooms = (getattr(sys.modules.get(name), "__file__", None) for name in ("torch", "numpy"))
    return any(file.startswith(os.path.join(os.path.dirname(room), "")) for room in rooms if room is not None)


def _first_of(arguments: Any, depth: int = 3) -> NoValue | None:
    """Return the first variable among arguments, or in lists among these."""
    for argument in arguments:
        variable = (
            argument
            if isinstance(argument, NoValue)
            else _first_of(cast("Any", argument), depth - 1)
            if depth and isinstance(argument, (list, tuple))
            else None
        )
        if variable is not None:
            return variable
    return None
