"""Second calls of a network, compared with its first one: the program has the first alone.

A cached mask, a table, or features kept for a reader change nothing. A memory of former frames does, and so do random numbers of Python.
"""

from __future__ import annotations

import copy
import importlib
import os
import random
import re
import sys
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from foreshape.interop.torch.node_sites import code_of, of_torch
from foreshape.interop.torch.packed_sequences import is_packed
from foreshape.interop.torch.python_state import ChangedValue, PythonState
from foreshape.interop.torch.untyped_torch import pytree, torch

_MODE: Final[Any] = importlib.import_module("torch.utils._python_dispatch").TorchDispatchMode
_DRAWN: Final = re.compile(r"(?<![\w.])(?:(?:np|numpy|npr)\.random\.\w+|npr\.\w+|random\.\w+|randint|choice|shuffle|uniform|gauss)\s*\(")
_FRESH: Final = re.compile(r"default_rng\(|RandomState\(|Random\(|urandom\(|\bsecrets\.|\buuid\.|\btime\.\w+\(")
_RUNS: Final = 3


def numpy_state() -> Any:
    """Return the state of NumPy's own generator; None before NumPy is imported."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is None or "numpy.random" not in sys.modules:
        return None
    kind, key, *rest = numpy.random.get_state(legacy=True)
    return kind, key.tobytes(), rest


def generators() -> tuple[Any, Any]:
    """Return the states of the shared generators of Python and NumPy."""
    return random.getstate(), numpy_state()


class _Seeded(_MODE):
    """torch's random numbers, the same in each run, without a touch of its generators."""

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.generators: dict[Any, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **named)
        device = next((one.device for one in pytree().tree_leaves((args, named)) if isinstance(one, torch.Tensor)), torch.device(named.get("device") or "cpu"))
        if device not in self.generators:
            self.generators[device] = torch.Generator(device).manual_seed(0)
        if func is torch.ops.aten.native_dropout.default:
            kept = (
                torch.ops.aten.bernoulli_.float(torch.empty_like(args[0]), 1 - args[1], generator=self.generators[device])
                if args[2]
                else torch.ones_like(args[0])
            )
            return args[0] * kept / (1 - args[1] if args[2] and args[1] < 1 else 1), kept.bool()
        for overload in (func, *(getattr(func.overloadpacket, name) for name in func.overloadpacket.overloads() if "generator" in name)):
            if any(argument.name == "generator" for argument in overload._schema.arguments):
                return overload(*args, **named | {"generator": self.generators[device]})
        return func(*args, **named)


def _other(value: Any) -> Any:
    """Return another tensor of the same kind, with numbers of the same range."""
    if not isinstance(value, torch.Tensor) or is_packed(value) or value.is_nested:
        return value
    turned = value.detach().flip([*range(value.dim())]) if value.dim() else value
    return turned * 0.75 if value.is_floating_point() or value.is_complex() else turned


class SecondCalls:
    """Copies of a network, run as it stands."""

    def __init__(self, module: Any, inputs: Sequence[Any]) -> None:
        self.module, self.inputs = module, inputs

    @contextmanager
    def _alone(self) -> Generator[Any]:
        """Yield a copy of the network, and restore the values beside its classes."""
        state = PythonState(self.module)
        try:
            yield copy.deepcopy(self.module)
        finally:
            state.restore()

    def _run(self, net: Any, inputs: Sequence[Any], state: Any) -> Any:
        net.load_state_dict(state)
        with torch.no_grad(), _Seeded():
            return net(*copy.deepcopy(tuple(inputs)))

    def repeats(self, numbers: Sequence[ChangedValue] = ()) -> bool | None:
        """Tell whether the network gives the same for an input after two other calls, each with the first ``numbers``; None if it does not run."""
        paths = {id(part): path for path, part in self.module.named_modules()}
        kept = [(paths[id(one.holder)], one.name, one.old) for one in numbers if id(one.holder) in paths and one.name in vars(one.holder)]
        try:
            with self._alone() as net:
                state = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in net.state_dict().items()}
                first = self._run(net, self.inputs, state)
                self._run(net, pytree().tree_map(_other, tuple(self.inputs)), state)
                for path, name, value in kept:
                    setattr(net.get_submodule(path), name, value)
                return _alike(first, self._run(net, self.inputs, state))
        except Exception:  # of the network's own code: it has no copy, or takes no other numbers
            return None

    def draws(self) -> bool:
        """Tell whether each of a few runs of the network moves the shared generators."""
        try:
            with self._alone() as net:
                state = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in net.state_dict().items()}
                for _ in range(_RUNS):
                    before = generators()
                    self._run(net, self.inputs, state)
                    if generators() == before:
                        return False
                return True
        except Exception:  # as above: nobody knows
            return False

    def drawing_lines(self, lines: set[tuple[str, int]]) -> list[str] | None:
        """Return the lines among these run by this thread in a few calls of the network; None if it does not run."""
        seen: dict[str, None] = {}
        files = {file for file, _ in lines}

        def step(frame: Any, event: str, _: Any) -> Any:
            if frame.f_code.co_filename not in files:
                return None
            if event == "line" and (frame.f_code.co_filename, frame.f_lineno) in lines:
                seen[f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"] = None
            return step

        before = sys.gettrace()
        try:
            with self._alone() as net:
                state = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in net.state_dict().items()}
                sys.settrace(step)
                for _ in range(_RUNS):
                    self._run(net, self.inputs, state)
            return list(seen)
        except Exception:  # as above
            return None
        finally:
            sys.settrace(before)


def _alike(a: Any, b: Any) -> bool:
    left, right = (pytree().tree_leaves(one) for one in (a, b))
    if len(left) != len(right):
        return False
    for x, y in zip(left, right, strict=True):
        if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor):
            if x.is_nested or y.is_nested:
                continue
            if x.shape != y.shape or not torch.allclose(x.to(torch.complex128), y.to(torch.complex128), rtol=1e-5, atol=1e-7, equal_nan=True):
                return False
        elif isinstance(x, (int, float, str)) and x != y:
            return False
    return True


def _files(module: Any) -> list[str]:
    """Return the files of the network's own classes."""
    files = (str(getattr(sys.modules.get(type(part).__module__), "__file__", None) or "") for part in module.modules())
    return [file for file in dict.fromkeys(files) if file and not of_torch(file)]


def _lines(module: Any, pattern: re.Pattern[str]) -> list[tuple[str, int]]:
    """Return the lines of the network's own files with such a call."""
    found: list[tuple[str, int]] = []
    for file in _files(module):
        for at, line in enumerate(code_of(file).splitlines(), 1):
            if "torch." not in line.partition("(")[0] and pattern.search(line.partition("#")[0]) is not None:
                found.append((file, at))
    return found


def state_words(module: Any, inputs: Sequence[Any], changes: Sequence[ChangedValue], read: set[str], moved: bool) -> tuple[list[str], list[str]]:
    """Return in words the state of the first call kept by a program: numbers and tensors, and other state or random numbers.

    Args:
        module, inputs: the network, and the example.
        changes: by its code in a call.
        read: the paths of the constants of its graph.
        moved: True if the shared generators have drawn meanwhile, perhaps for another thread.
    """
    paths = {id(part): name for name, part in module.named_modules()}
    numbers, others, counts = list[str](), list[ChangedValue](), list[ChangedValue]()
    for one in changes:
        if one.is_number or one.is_generator:
            numbers.append(one.words())
            counts += [one] if one.is_number else []
        elif one.is_tensor and id(one.holder) in paths:
            if f"{paths[id(one.holder)]}.{one.name}".lstrip(".") in read:
                name, _, line = one.words().partition("    ")
                numbers.append(f"{name}, a tensor that is no buffer{f'    {line}' if line else ''}")
        else:
            others.append(one)
    more: list[str] = []
    probe = SecondCalls(module, inputs)
    if others and probe.repeats() is not True and not (counts and probe.repeats(counts)):  # other results of a count are told by its own words
        more.append(
            "the network's code computes with what its calls before have left, the program with the first call alone: "
            + "; ".join(one.words() for one in others[:3])
        )
    lines = set(_lines(module, _DRAWN)) if moved else set[tuple[str, int]]()
    drawn = probe.drawing_lines(lines) if lines else []
    fresh = _lines(module, _FRESH)
    if drawn is None or drawn or (moved and not lines and threading.active_count() == 1 and probe.draws()):
        place = f", at {', '.join(drawn[:3])}" if drawn else ""
        more.append(
            f"the network's code draws random numbers of Python or NumPy{place}: the program has the ones of its trace (torch.rand draws anew in each call)"
        )
    elif fresh and not others and probe.repeats() is False:
        place = ", ".join(f"{os.path.basename(file)}:{at}" for file, at in fresh[:3])
        more.append(f"the network's code gives other results in each call, at {place}: the program has the ones of its trace")
    return numbers, more
