"""Functions of torch that are others for a while, for one thread: it alone sees them at work, and one export runs at a time."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any, Final, ParamSpec, TypeVar, cast

from foreshape.interop.torch.untyped_torch import torch

_SIZES: Final = "torch.fx.experimental.symbolic_shapes.ShapeEnv"
_JAGGED: Final = "torch.nested._internal.nested_tensor"
PROCESS_WIDE: Final[dict[str, str]] = {
    # of torch: each asks for its thread, and is torch's own for all others
    "torch.jit.is_tracing": "no mode of torch sees this question",
    "torch.distributions.distribution.Distribution._validate_args": "an attribute; the checks would fix sizes, and are refused by torch.export",
    "torch.nn.modules.module.Module.training": "an attribute, whose readers are looked for",
    "torch.autograd.function._SingleLevelFunction.apply": "runs the forward of a Function apart from all modes",
    "torch.nn.modules.transformer._detect_is_causal_mask": "a function of Python within torch, which reads a mask",
    f"{_JAGGED}.nested_view_from_values_offsets_lengths": "as above; torch.export traces no nested tensors",
    f"{_JAGGED}.nested_view_from_values_offsets": "as above",
    f"{_JAGGED}.jagged_from_list": "as above",
    f"{_JAGGED}.jagged_from_tensor_and_lengths": "as above",
    "torch.fx.experimental.proxy_tensor.ProxyTorchDispatchMode.__torch_dispatch__": "torch takes no mode besides its own before autograd",
    "torch.fx._symbolic_trace.is_fx_tracing": "as above; torch makes no nested tensors in a trace",
    "torch.fx.proxy.TracerBase._filter_traceback_frames": "torch.export makes its tracer itself, and has no option for the lines of its nodes",
    f"{_SIZES}._get_sloc": "torch.export makes its table of sizes itself, and has no option for the lines of its guards",
    f"{_SIZES}.evaluate_sym_node": "as above, nor for an answer of its own",
    f"{_SIZES}._evaluate_expr": "as above",
    "torch.fx.experimental.sym_node.SymNode.__init__": "as above, nor for symbols of long sizes",
    **{f"Offsets.{name}": "of written code: properties that read values" for name in ("rows", "longest", "segments", "positions", "reversal")},
    # the same for all threads
    "torch.export._trace.print": "torch prints an error beside raising it; its module has a `print` of its own that does not",
    "torch.fx.experimental.proxy_tensor.CONSTANT_NUMEL_LIMIT": "a number, read by traces alone",
    "the level of the logger torch": "torch has no other switch for the tracebacks it logs",
    "warnings.catch_warnings": "Python's own way, one for the process before 3.14",
    "torch.fx.experimental.symbolic_shapes.uninteresting_files": "grows by our files once: guards are told by lines of users",
    "the operators foreshape::": "defined once, for good",
    "torch.nn.modules.module.register_module_buffer_registration_hook": "the only hook for buffers; it looks at the network's alone",
    # of the user
    "functions of the network's packages, their __code__": "asks for len, math, sqrt, int and range by hidden names of builtins: Python's own but in an export",
    "the network": "methods of its modules, which ask for their thread; hooks; the momentum of batch normalizations without one",
}
"""A name of something replaced, for the time of an export, where all threads look -> the reason for no mode of one thread."""
_P = ParamSpec("_P")
_R = TypeVar("_R")
_MODE: Final[Any] = importlib.import_module("torch.overrides").TorchFunctionMode
_HERE: Final = os.path.dirname(os.path.abspath(__file__)) + os.sep
_TORCH: Final = os.path.dirname(torch.__file__) + os.sep
_ABSENT: Final = object()
_LOCK: Final = threading.RLock()
"""Held by the thread that exports: torch's own tracing and the replaced functions are there once for the whole process."""
_EXPORTING: Final[list[int]] = []
"""The holding thread, as often as it does."""


def one_at_a_time(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Have a function run in one thread at a time, together with the others of this kind."""

    @functools.wraps(function)
    def run(*given: _P.args, **named: _P.kwargs) -> _R:
        with _LOCK:
            _EXPORTING.append(threading.get_ident())
            try:
                return function(*given, **named)
            finally:
                _EXPORTING.pop()

    return run


def exports_here() -> bool:
    """Tell whether this thread exports a network."""
    return threading.get_ident() in _EXPORTING[-1:]


def _for_this_thread(function: Any, before: Any) -> Any:
    """Return a function for this thread, and the one before for all others."""
    thread = threading.get_ident()

    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        return (function if threading.get_ident() == thread else before)(*given, **named)

    return call


def _dispatched(value: Any, before: Any) -> Any:
    """Return a value for the place of another; other threads go on with the one before if it is a function or a property."""
    inherited: Any = before

    def read(instance: Any) -> Any:
        return inherited.__get__(instance, type(instance))

    def called(cls: Any, *given: Any, **named: Any) -> Any:
        return inherited.__get__(None, cls)(*given, **named)

    if isinstance(value, property) and before is not None:
        return property(_for_this_thread(value.fget, read))
    if isinstance(value, classmethod):
        return classmethod(_for_this_thread(cast("Any", value).__func__, called))
    return _for_this_thread(value, before) if isinstance(value, FunctionType) and callable(before) else value


@contextmanager
def replaced(of: Any, **functions: Any) -> Generator[None]:
    """Have a class or a module these functions within the block, for this thread; inherited ones are inherited again behind it."""
    names = cast("dict[str, Any]", vars(of))
    spaces: list[Mapping[str, Any]] = [names] if isinstance(of, ModuleType) else [vars(cls) for cls in of.__mro__]
    before = {name: next((space[name] for space in spaces if name in space), None) for name in functions}
    with replaced_for_all(of, **{name: _dispatched(function, before[name]) for name, function in functions.items()}):
        yield


@contextmanager
def replaced_for_all(of: Any, **values: Any) -> Generator[None]:
    """Have a class or a module these values within the block, the same for all threads: a function asks for its thread itself.

    Raises:
        KeyError: one of them is not among `PROCESS_WIDE`.
    """
    owner = of.__name__ if isinstance(of, ModuleType) else f"{of.__module__}.{of.__qualname__}" if of.__module__.startswith("torch.") else of.__qualname__
    names: dict[str, Any] = vars(of)
    before = {name: names[name] for name in values if name in names}
    for name, value in values.items():
        _ = PROCESS_WIDE[f"{owner}.{name}"]
        setattr(of, name, value)
    try:
        yield
    finally:
        for name in values:
            if name in before:
                setattr(of, name, before[name])
            else:
                delattr(of, name)


@contextmanager
def replaced_methods(methods: Iterable[tuple[Any, str, Any]]) -> Generator[None]:
    """Have objects, the network's own modules, such methods within the block, in this thread: each is an object, a name and a bound method."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for part, name, function in methods:
            attributes: dict[str, Any] = part.__dict__
            before.append((attributes, name, attributes.get(name, _ABSENT)))
            attributes[name] = _for_this_thread(function, getattr(part, name))
        yield
    finally:
        for attributes, name, value in reversed(before):
            if value is _ABSENT:
                attributes.pop(name, None)
            else:
                attributes[name] = value


class StandIns(_MODE):
    """Functions of torch with others in their place, for the thread around the block.

    Args:
        functions: a function -> its stand-in.
        bodies: functions of torch in Python with calls of such ones; torch's modes see no calls within another seen one.
    """

    def __init__(self, functions: Mapping[Any, Any], bodies: Iterable[FunctionType] = ()) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.bodies = {function: functools.partial(self._body, _unasked(function)) for function in bodies}
        self.functions = {**functions, **self.bodies}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        function = self.functions.get(func)
        if function is None or (types and func in self.bodies):
            function = func
        return function(*args, **kwargs) if kwargs else function(*args)

    def _body(self, function: Any, /, *given: Any, **named: Any) -> Any:
        with self:
            return function(*given, **named)


@functools.cache
def _unasked(function: FunctionType) -> FunctionType:
    """Return a function of torch without its calls of modes."""
    names = function.__globals__ | dict.fromkeys(("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), _no)
    return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)


def _no(*_: Any) -> bool:
    return False


def asking_frame(*functions: str) -> Any:
    """Return the frame with the call of a stand-in, behind torch's ways to it; ``functions``: the names of torch's own around it."""
    frame: Any = inspect.currentframe()
    while frame.f_back is not None:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if not (file.startswith(_HERE) or name in ("__torch_function__", "handle_torch_function") or (name in functions and file.startswith(_TORCH))):
            break
        frame = frame.f_back
    return frame
