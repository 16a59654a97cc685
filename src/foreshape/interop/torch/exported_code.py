"""Written torch code as a ``.pt2`` of torch.export, with open sizes.

An export goes one way through loops and branches. So numbers known before the run are constants first, for the trace to follow Python's own loops; a network
where numbers decide is written with torch's ``while_loop`` and ``cond``. The trace is of large sizes: nothing becomes 1 on the way. Torch's notes of
sizes other than 1 are left out, and the exported program is compared with the module at small ones.
"""

from __future__ import annotations

import importlib
import io
import re
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from foreshape.core.dims import symbols_of
from foreshape.errors import FormatError
from foreshape.interop.onnx_comparison import comparison_sizes
from foreshape.interop.torch.export_errors import quiet
from foreshape.interop.torch.exported_sequences import inputs_of, open_sizes, refused_op, take_single_sequences, traced_offsets
from foreshape.interop.torch.plain_module import module_of
from foreshape.interop.torch.replaced import one_at_a_time, replaced
from foreshape.interop.torch.untyped_torch import is_list, torch
from foreshape.interop.torch.whole_operators import whole_layers, with_torch_layers
from foreshape.interop.torch.write.numbers_code import LONG_CONSTANT
from foreshape.interop.torch.write.plain_op import Flow
from foreshape.interop.torch.write.plain_source import PlainSource, tensors_of
from foreshape.interop.torch.write.program_source import plain_source
from foreshape.interop.torch.written_check import WrittenNetwork, check_written
from foreshape.language.program import Program
from foreshape.language.wire import replacing
from foreshape.runtime.engine import Scope

_CLOSE: Final = 1e-4
"""The greatest difference of an exported program from its module, as a part of the largest number."""
_LARGER: Final = 8
"""The factor from the sizes of a comparison to the ones of a trace."""
_NOT_ONE: Final = re.compile(r"\bu\d+ >= 2\b")
"""In the words of an assertion of a trace: a size is not 0 or 1, as at the traced sizes."""
Sizes = Mapping[str, Sequence[int]]
Axes = Mapping[str, Sequence[int]]


def export_code(
    path: str, program: Program, feeds: Sequence[str], fetches: Sequence[str], tensors: Mapping[str, Any], scope: Scope | None = None
) -> tuple[str, ...]:
    """Write a program by torch.export, with as many open sizes as it takes.

    Args:
        program: pruned to its fetches, with known shapes.
        feeds, fetches: the names of its inputs and results.
        tensors: the ``state_dict`` of its module.
        scope: the program's values: the module is compared with the program. None: it is not.

    Returns:
        the open sizes of inputs kept at a number, as ``width = 96``.

    Raises:
        FormatError: torch.export refuses it, with the reason; the module computes other numbers than the program.
    """
    specs = {name: program.global_block.vars[name].spec.known_dims for name in feeds}
    opened = {name: [axis for axis, d in enumerate(dims) if not isinstance(d, int)] for name, dims in specs.items()}
    first = {name: [axis for axis in axes if axis == 0] for name, axes in opened.items()}
    compared: list[dict[str, list[int]]] = [*comparison_sizes(program, feeds)] if feeds else [{}]
    example = compared[-1]
    wished = _nearest(program, feeds, {n: [d if at not in opened[n] else 2 * d if at else 3 for at, d in enumerate(example[n])] for n in feeds})
    if wished is not None:
        compared.append(wished)
    written, reason = _modules(program, feeds, fetches, tensors)
    modules = [module for module, _ in written]
    told: list[str] = []
    rows = {name for name in feeds if program.global_block.vars[name].spec.lod is not None}  # open in each: other lengths are other rows
    ways = [opened, first, {name: [axis for axis in first[name] if name in rows] for name in feeds}]
    for axes in [axes for at, axes in enumerate(ways) if axes not in ways[:at]]:
        large = _nearest(program, feeds, {n: [_LARGER * d if at in axes[n] else d for at, d in enumerate(example[n])] for n in feeds})
        for module in modules:
            for traced in (large, example) if large is not None and large != example else (example,):
                try:
                    others = [{n: [d if at in axes[n] else traced[n][at] for at, d in enumerate(sizes[n])] for n in feeds} for sizes in compared]
                    file = _file_of(module, program, feeds, traced, axes, others)
                except Exception as error:  # torch.export's own, of any class
                    words = " ".join(str(error).split("\n")[:2])[:300].strip() or type(error).__name__
                    told.append(refused_op(error, module, program) + words)
                    if type(error).__name__ == "GuardOnDataDependentSymNode":  # whatever the sizes
                        break
                    continue
                if scope is not None:
                    _check_module(module, dict(written)[module], program, feeds, fetches, tensors, scope)
                with replacing(path) as out:
                    out.write(file)
                return tuple([f"{specs[n][at]} = {traced[n][at]}" for n in feeds for at in opened[n] if at not in axes[n]])
    raise FormatError(f"torch.export refuses it{_numbers_decide(program, feeds)}: {reason or told[-1]}; write a .py")


def _nearest(program: Program, feeds: Sequence[str], wished: Sizes) -> dict[str, list[int]] | None:
    found = program.feeds.nearest(wished) if wished else {}
    return None if found is None else {name: found[name] for name in feeds}


def _check_module(
    module: Any, source: PlainSource, program: Program, feeds: Sequence[str], fetches: Sequence[str], tensors: Mapping[str, Any], scope: Scope
) -> None:
    """Compare a module with its program."""

    def write(program: Program, fetches: Sequence[str]) -> tuple[Any, PlainSource]:
        made = plain_source(program, feeds, fetches)
        other = module_of(made)
        other.load_state_dict(tensors_of(made, scope.tensor))
        return other, made

    check_written(WrittenNetwork(module, source, program, feeds, fetches, scope, write), trains=False)


def _modules(program: Program, feeds: Sequence[str], fetches: Sequence[str], tensors: Mapping[str, Any]) -> tuple[list[tuple[Any, PlainSource]], str]:
    """Return the module with its source, and of a network of blocks another with torch's loops and branches; or the reason for having none."""
    flows: tuple[Flow, ...] = ("folded", "functional", "selected") if len(program.blocks) > 1 else ("folded",)
    modules: list[tuple[Any, PlainSource]] = []
    reason = ""
    for flow in flows:
        try:
            source = plain_source(program, feeds, fetches, flow=flow)
        except FormatError as refused:
            reason = str(refused).split("code:")[-1].strip()
            continue
        modules.append((module_of(source).eval(), source))
        modules[-1][0].load_state_dict(tensors)
    return modules, reason


def _numbers_decide(program: Program, feeds: Sequence[str]) -> str:
    """Return in words the operators whose numbers decide on the way or on sizes."""
    specs = [program.global_block.vars[name].spec for name in feeds]
    known = {n for s in specs for d in (*s.known_dims, *(s.lod.counts if s.lod is not None else ())) for n in symbols_of(d)}
    found: dict[str, None] = {}
    for op in program.all_ops():
        if op.sub_block_indices():
            found[op.type] = None
        else:
            dims = [d for name in op.output_names() if (v := op.block.find(name)) is not None for d in v.spec.dims or ()]
            news = {n for d in dims for n in symbols_of(d)} - known
            if news:
                found[op.type] = None
                known |= news
    return f" (numbers decide on its way or its sizes, in {', '.join(found)})" if found else ""


@one_at_a_time
def _file_of(module: Any, program: Program, feeds: Sequence[str], sizes: Sizes, axes: Axes, compared: Sequence[Sizes]) -> bytes:
    """Return a module as a file of torch.export, checked at other sizes."""
    with quiet():
        found = _exported(module, program, feeds, sizes, axes)
        file = io.BytesIO()
        torch.export.save(found, file)
        for others in compared:
            _check(found, module, program, feeds, others)
    return file.getvalue()


def _exported(module: Any, program: Program, feeds: Sequence[str], sizes: Sizes, axes: Axes) -> Any:
    dynamic = open_sizes(program, feeds, axes)
    with warnings.catch_warnings(), _small_constants(), whole_layers(), traced_offsets(module):
        warnings.simplefilter("ignore")  # of torch's own code
        found = torch.export.export(module, inputs_of(program, feeds, sizes, 0), dynamic_shapes=dynamic if feeds else None)
    with_torch_layers(found)
    for node in [*found.graph.nodes]:
        if str(node.target) == "aten._assert_scalar.default" and _NOT_ONE.search(str(node.args[1])):
            found.graph.erase_node(node)
    found.graph_module.recompile()
    found._guards_code = [guard for guard in found._guards_code if " != " not in guard]
    take_single_sequences(found)
    return found


@contextmanager
def _small_constants() -> Generator[None]:
    """Let a trace know the numbers of small constants, not of single ones alone."""
    tracing: Any = importlib.import_module("torch.fx.experimental.proxy_tensor")
    with replaced(tracing, CONSTANT_NUMEL_LIMIT=LONG_CONSTANT):
        yield


def _check(found: Any, module: Any, program: Program, feeds: Sequence[str], sizes: Sizes) -> None:
    """Refuse an exported program with other results than the module, at other sizes."""
    given = inputs_of(program, feeds, sizes, 1)
    with torch.inference_mode():
        try:
            wanted = _flat(module(*given))
        except RuntimeError:  # of whole numbers of 0, drawn for a divisor
            given = tuple([one if one.is_floating_point() else torch.ones_like(one) for one in given])
            wanted = _flat(module(*given))
        seen = _flat(found.module()(*given))
    for a, b in zip(wanted, seen, strict=True):
        finite = a[a.isfinite()].double().abs()
        least = max(float(finite.max()) if finite.numel() else 0.0, 1e-3)
        if a.shape != b.shape or not torch.allclose(a.double(), b.double(), _CLOSE, _CLOSE * least, equal_nan=True):
            raise FormatError("the exported program gives other results at other sizes")


def _flat(results: Any) -> list[Any]:
    return [one for part in results for one in _flat(part)] if is_list(results) else [results]
