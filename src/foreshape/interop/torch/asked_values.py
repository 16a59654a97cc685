"""Questions about sizes and values, answered without fixing them while a network is exported.

``len`` of a tensor, a window as large as the image and the checks of torch's distributions and losses would make an open size a number, or are refused
by torch.export.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import linecache
import math
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, cast

from foreshape.errors import SchemaError
from foreshape.interop.torch.jagged_tensors import jagged_tensors
from foreshape.interop.torch.node_sites import code_of, of_torch
from foreshape.interop.torch.own_code import own_code
from foreshape.interop.torch.recorded_loops import calls_range, open_range, records
from foreshape.interop.torch.replaced import asking_frame, exports_here, replaced
from foreshape.interop.torch.sparse_matrices import sparse_stand_ins
from foreshape.interop.torch.untyped_torch import is_list, torch
from foreshape.interop.torch.whole_operators import max_pool1d, stand_ins

_LEN: Final = builtins.len


def _length(of: Any) -> Any:
    """Return the builtin ``len``, of a tensor as an open size."""
    return of.shape[0] if exports_here() and isinstance(of, torch.Tensor) and of.dim() else _LEN(of)


def _whole_window(kind: str, before: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pooling, for a window of the whole image as a maximum or a mean of it: torch takes no open size for a window."""
    axes = int(kind[-2])

    @functools.wraps(before)
    def pooled(x: Any, kernel_size: Any, *rest: Any, **named: Any) -> Any:
        sizes = [*kernel_size] if is_list(kernel_size) or isinstance(kernel_size, torch.Size) else [kernel_size] * axes
        usual = all(option in _USUAL and value is _USUAL[option] for option, value in named.items())
        if not any(isinstance(n, torch.SymInt) for n in sizes) or rest or not usual or len(sizes) != axes:
            return before(x, kernel_size, *rest, **named)
        if any(not bool(n == x.shape[at - axes]) for at, n in enumerate(sizes)):
            return before(x, kernel_size, *rest, **named)
        if kind.startswith("avg"):
            return x.mean([*range(-axes, 0)], keepdim=True)
        return x.flatten(-axes).max(-1, keepdim=True)[0].reshape(*x.shape[:-axes], *[1] * axes)

    return pooled


_USUAL: Final = {"stride": None, "padding": 0, "dilation": 1, "ceil_mode": False, "return_indices": False}
"""The options of a pooling by default: torch hands them on to a mode."""


def _gaussian_nll(x: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Any:
    """Return torch's gaussian_nll_loss without its question whether a variance is negative."""
    if isinstance(var, float):
        var = var * torch.ones_like(x)
    elif var.dim() == x.dim() - 1:
        var = var.unsqueeze(-1)
    held = torch.where(var < eps, var - var.detach() + eps, var)  # torch clamps it beside the gradient
    loss = 0.5 * (torch.log(held) + (x - target) ** 2 / held) + (0.5 * math.log(2 * math.pi) if full else 0.0)
    return loss.mean() if reduction == "mean" else loss.sum() if reduction == "sum" else loss


class _Math:
    """The module ``math``, with functions for open sizes too."""

    def __getattr__(self, name: str) -> Any:
        own, of_sizes = getattr(math, name), getattr(torch, f"_sym_{name}", None)
        return own if of_sizes is None else _of_any(own, of_sizes)


def _of_any(own: Callable[[Any], Any], of_sizes: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        return (of_sizes if isinstance(x, (torch.SymInt, torch.SymFloat)) else own)(x)

    return call


def _even_numbers(start: Any, end: Any, steps: Any = 100, **named: Any) -> Any:
    """Return torch.linspace; torch's own makes an open number of steps a fixed one."""
    if not isinstance(steps, torch.SymInt) or any(isinstance(v, torch.Tensor) for v in (start, end)):
        return _LINSPACE(start, end, steps, **named)
    place = torch.arange(steps, **({"dtype": torch.get_default_dtype()} | named))
    step = (end - start) / torch.sym_max(steps - 1, 1)
    return torch.where(place < (steps + 1) // 2, start + place * step, end - (steps - 1 - place) * step)


def _spectra_of_length(
    spectra: Any,
    n_fft: int,
    hop_length: Any = None,
    win_length: Any = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: Any = None,
    length: Any = None,
    return_complex: bool = False,
) -> Any:
    """Return torch.istft; torch's own makes an open length a fixed one, and asks whether the frames reach so far."""
    settings = hop_length, win_length, window, center, normalized, onesided, length, return_complex
    fixed = isinstance(length, int) and all(isinstance(n, int) for n in spectra.shape)
    if length is None or fixed or return_complex or onesided is False or spectra.shape[-2] != n_fft // 2 + 1:
        return _ISTFT(spectra, n_fft, *settings)
    hop, width = hop_length or n_fft // 4, win_length or n_fft
    weights = spectra.real.new_ones(width) if window is None else window
    before = (n_fft - width) // 2
    weights = torch.nn.functional.pad(weights, (before, n_fft - width - before))
    frames = torch.fft.irfft(spectra.transpose(-1, -2), n_fft, norm="ortho" if normalized else "backward") * weights
    whole, start = n_fft + hop * (spectra.shape[-1] - 1), n_fft // 2 if center else 0
    over = weights.square().expand(spectra.shape[-1], n_fft)
    missing = torch.sym_max(start + length - whole, 0)

    def added(parts: Any, beyond: float) -> Any:
        sums = torch.ops.aten.unfold_backward(parts, [*parts.shape[:-2], whole], parts.dim() - 2, n_fft, hop)
        rest = torch.full((*parts.shape[:-2], missing), beyond, dtype=sums.dtype, device=sums.device)
        return torch.cat([sums, rest], -1).narrow(-1, start, length)

    return added(frames, 0.0) / added(over, 1.0)


class _WholeNumber(type):
    """The class ``int``, whose calls leave an open size open."""

    def __call__(cls, *given: Any, **named: Any) -> Any:
        first = given[0] if _LEN(given) == 1 else None
        if isinstance(first, (torch.SymInt, torch.SymFloat)):
            return first if isinstance(first, torch.SymInt) else torch.sym_int(first)
        return int(*given, **named)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, int)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, int)

    def __eq__(cls, other: object) -> bool:
        return other in (int, _INT)

    def __hash__(cls) -> int:
        return hash(int)

    def __getattr__(cls, name: str) -> Any:
        return getattr(int, name)


_INT: Final = _WholeNumber("int", (), {})
_NAMED_INT: Final = re.compile(r"int\b(\(?)")  # begins with what is searched fast
_AS_CLASS: Final = re.compile(r"\b(?:is|is not|dtype\s*=)\s*$")
"""Code before the name ``int`` that needs the class itself."""


@functools.cache
def _calls_int(file: str) -> bool:
    """Tell whether the code of a file calls ``int``, and has no need of the class."""
    text, calls = code_of(file), False
    for named in _NAMED_INT.finditer(text):
        before = text[max(0, named.start() - 20) : named.start()]
        if before[-1:].isalnum() or before[-1:] == "_":
            continue
        if _AS_CLASS.search(before) is not None:
            return False
        calls = calls or named[1] == "("
    return calls


def _quotient(x: Any, y: Any, **named: Any) -> Any:
    """Return torch.div, of two sizes as a size: torch's own makes it a tensor."""
    mode = named.get("rounding_mode")
    if mode is None or not any(isinstance(v, torch.SymInt) for v in (x, y)) or not all(isinstance(v, (int, torch.SymInt)) for v in (x, y)):
        return _DIV(x, y, **named)
    return x // y if mode == "floor" else torch.sym_int(x / y)


_DIV: Final[Any] = torch.div


def _matrix_norm(x: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None, out: Any = None) -> Any:
    """Return torch.linalg.matrix_norm; torch's own fixes the number of matrices."""
    x = x if dtype is None else x.to(dtype)
    if out is not None or x.dim() < 2 or not is_list(dim) or len(dim) != 2 or ord not in ("fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf):
        return _MATRIX_NORM(x, ord, dim, keepdim, out=out)
    rows, columns = (int(axis) % x.dim() for axis in dim)
    if ord == "fro":
        return torch.linalg.vector_norm(x, 2, (rows, columns), keepdim)
    if ord == "nuc" or abs(ord) == 2:
        values = torch.linalg.svdvals(x.movedim((rows, columns), (-2, -1)))
        found = values.sum(-1) if ord == "nuc" else values.amax(-1) if ord > 0 else values.amin(-1)
    else:
        sums = x.abs().sum(rows if abs(ord) == 1 else columns, keepdim=True)
        found = (sums.amax if ord > 0 else sums.amin)((rows, columns))
    return found.unsqueeze(min(rows, columns)).unsqueeze(max(rows, columns)) if keepdim else found


_MATRIX_NORM: Final[Any] = torch.linalg.matrix_norm
_LINSPACE: Final[Any] = torch.linspace
_ISTFT: Final[Any] = torch.istft
_POOLED: Final = [f"{kind}_pool{axes}d" for kind in ("max", "avg") for axes in (1, 2, 3)]


_FUNCTIONS: Final[list[tuple[str, Any, Any]]] = [
    ("len", builtins.len, _length),
    ("math", math, _Math()),
    ("sqrt", math.sqrt, _Math().sqrt),
]
"""Name, Python's own, and its stand-in."""


class _Unchecked:
    """Tells torch's distributions not to check their arguments, in the exporting thread."""

    def __init__(self, before: bool) -> None:
        self.before = before

    def __get__(self, instance: Any, owner: Any) -> bool:
        return self.before and not exports_here()


@functools.cache
def open_functions() -> tuple[dict[Any, Any], list[Any]]:
    """Return functions of torch with the ones in their place, and the functions of torch around them."""
    functional: Any = torch.nn.functional
    pools = {getattr(functional, name): _whole_window(name, max_pool1d if name == "max_pool1d" else getattr(functional, name)) for name in _POOLED}
    functions, bodies = stand_ins()
    functions = {
        **functions,
        **pools,
        functional.gaussian_nll_loss: _gaussian_nll,
        _LINSPACE: _even_numbers,
        _DIV: _quotient,
        _ISTFT: _spectra_of_length,
        _MATRIX_NORM: _matrix_norm,
        _CDIST: _distances,
        **sparse_stand_ins(),
        torch.Tensor.fill_diagonal_: _filled_diagonal,
        **dict.fromkeys((torch.diag, torch.Tensor.diag), _diagonal_of_matrix),
        **dict.fromkeys((_DIAGONAL, torch.Tensor.diagonal), _diagonal),
    }
    return functions, [*bodies, *(getattr(functional, f"lp_pool{axes}d") for axes in (1, 2, 3)), torch.norm, torch.Tensor.norm, torch.Tensor.istft]


def _distances(x: Any, y: Any, p: float = 2.0, compute_mode: str = "use_mm_for_euclid_dist_if_necessary") -> Any:
    """Return torch.cdist, whose slope at a distance of 0 is 0; torch's own has none where it multiplies matrices, as a trace's large sizes make it do."""
    lead = torch.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    x, y = (tensor.expand(*lead, *tensor.shape[-2:]) for tensor in (x, y))
    rows = max((getattr(size.node, "hint", None) or 0) if isinstance(size, torch.SymInt) else size for size in (x.shape[-2], y.shape[-2]))
    multiplied = compute_mode == "use_mm_for_euclid_dist" or (compute_mode == "use_mm_for_euclid_dist_if_necessary" and rows > _FEW_ROWS)
    if p != 2 or not multiplied:
        return _CDIST(x, y, p, "donot_use_mm_for_euclid_dist")
    squares = (x.square().sum(-1, keepdim=True) + y.square().sum(-1).unsqueeze(-2) - 2 * (x @ y.mT)).clamp_min(0)
    none = squares == 0
    return torch.where(none, 0.0, torch.where(none, 1.0, squares).sqrt())


def _filled_diagonal(x: Any, fill_value: Any, wrap: bool = False) -> Any:
    """Return Tensor.fill_diagonal_, of any sizes; torch's own is a view of strides. ``wrap``: a tall matrix begins again, a row below the last column."""
    places = [torch.arange(size, device=x.device).reshape([-1 if a == axis else 1 for a in range(x.dim())]) for axis, size in enumerate(x.shape)]
    if x.dim() == 2 and wrap:
        return x.masked_fill_((places[1] - places[0]) % (x.shape[1] + 1) == 0, fill_value)
    if x.dim() < 2 or (x.dim() > 2 and any(size != x.shape[0] for size in x.shape)):
        raise SchemaError.must("fill_diagonal_", "for a matrix, or a tensor of more axes of one size", str([*x.shape]))
    on_it = places[0] == places[1]
    for place in places[2:]:
        on_it = on_it & (place == places[0])
    return x.masked_fill_(on_it, fill_value)


def _diagonal(x: Any, offset: Any = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """Return torch.diagonal, with a size as its offset; torch's own fixes it."""
    if not isinstance(offset, torch.SymInt):
        return _DIAGONAL(x, offset, dim1, dim2)
    x = x.movedim((dim1, dim2), (-2, -1))
    first = (0, offset) if offset >= 0 else (-offset, 0)
    rows, columns = (size - start for size, start in zip(x.shape[-2:], first, strict=True))
    places = torch.arange(rows if rows <= columns else columns, device=x.device)
    return x[..., places + first[0], places + first[1]]


def _diagonal_of_matrix(x: Any, diagonal: Any = 0, **named: Any) -> Any:
    return _diagonal(x, diagonal) if isinstance(diagonal, torch.SymInt) and x.dim() == 2 else _DIAG(x, diagonal, **named)


_DIAG: Final[Any] = torch.diag
_DIAGONAL: Final[Any] = torch.diagonal
_CDIST: Final[Any] = torch.cdist
_FEW_ROWS: Final = 200
"""eager torch multiplies matrices beyond 25 rows; a trace has eight times as many as the example."""


def _is_traced(before: Callable[[], bool], answers: list[bool], traced: bool) -> Callable[[], bool]:
    """Return torch.jit.is_tracing, ``traced`` for the code of networks, noted in ``answers``; but for a choice between a tensor and a number."""

    def told() -> bool:
        asked = asking_frame()
        if before() or of_torch(asked.f_code.co_filename):
            return before()
        if _CHOSEN.search(linecache.getline(asked.f_code.co_filename, asked.f_lineno).rstrip()) is not None:
            return False
        answers.append(traced)
        return traced

    return told


_CHOSEN: Final = re.compile(r"\bif (?:\w+\.)*is_tracing\(\)(?: else\b|$)")
"""A choice between a tensor, for a trace, and a number: sizes are numbers here."""


@contextmanager
def answered_open(module: Any, traced: bool = True) -> Generator[list[bool]]:
    """Answer such questions for any size and value while a module is exported.

    Args:
        module: the network.
        traced: the answer to its code that asks for torch.jit.is_tracing. It does to go a way that holds for all sizes, or to make tensors of numbers; but
            in some networks this way reads values.

    Yields:
        A list that holds this answer after such a question.
    """
    answers = list[bool]()
    jit: Any = importlib.import_module("torch.jit")
    traced_mode = _is_traced(jit.is_tracing, answers, traced)
    checked: Any = importlib.import_module("torch.distributions").Distribution
    attributes = cast("dict[str, Any]", vars(checked))
    unchecked = {name: _Unchecked(attributes[name]) for name in ("_validate_args",) if name in attributes}
    with own_code(module, _builtins_of), jagged_tensors(), replaced(jit, is_tracing=traced_mode), replaced(checked, **unchecked):
        yield answers


def _builtins_of(space: dict[str, Any]) -> dict[str, Any]:
    """Return stand-ins for names of Python in the code of a file."""
    found = {name: own for name, before, own in _FUNCTIONS if space.get(name, before if name == "len" else None) is before}
    if not of_torch(file := str(space.get("__file__"))):
        if space.get("int", int) is int and _calls_int(file):
            found["int"] = _INT
        if records() and space.get("range", range) is range and calls_range(file):
            found["range"] = open_range
    return found
