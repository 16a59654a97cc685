"""From a program of padded texts to the same program on ragged rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple

from foreshape.core.dims import Dim
from foreshape.core.hints import did_you_mean
from foreshape.errors import SchemaError, UnpadError
from foreshape.language.program import Block, Op, Program, Variable
from foreshape.transforms.unpad.contents import INFINITY, Content, constant, index_content
from foreshape.transforms.unpad.index_forms import LENGTH, IndexForm, Side
from foreshape.transforms.unpad.op_rules import RULES
from foreshape.transforms.unpad.packed_rules import packed_result
from foreshape.transforms.unpad.packing import NotRagged, Packer
from foreshape.transforms.unpad.padded_values import BATCH, ROWS, AxisReader, Fault, Unsupported, filled
from foreshape.transforms.unpad.proof import Numbers, Proof
from foreshape.transforms.unpad.row_scales import dynamic_quantizations, with_row_scales


class UnpaddedProgram(NamedTuple):
    """A program on ragged rows.

    Attributes:
        feeds: the names of its inputs, in the order of the padded program's; masks and lengths are gone.
        fetches: its results: one row for each text, or ragged rows.
    """

    program: Program
    feeds: list[str]
    fetches: list[Variable]


def unpad_program(
    program: Program,
    feeds: Sequence[str],
    fetches: Iterable[str],
    mask: str | None,
    numbers: Numbers,
    *,
    side: Side = "right",
    masked: Literal[0, 1] = 0,
    pad_id: int | None = None,
    row_scales: bool = False,
    source: Callable[[Op], str] = lambda _: "",
) -> UnpaddedProgram:
    """Return a program of padded texts on ragged rows, with a proof: no masked row reaches a text's own rows or results.

    Args:
        program: left as it is; its inputs of texts are ``[texts, time, ...]``.
        feeds, fetches: the names of its inputs and results.
        mask: the input telling the rows of texts, ``[texts, time]``; or their lengths, ``[texts]``; None if the network reads them from the ids,
            or has none.
        numbers: returns the array of a parameter, None without one.
        side: the end of a text with its padding.
        masked: the number of masked rows in the mask.
        pad_id: the id of padding, if the network compares ids with it or has zeros in its row of the table.
        row_scales: quantizations by the range of all texts get a scale for each row.
        source: returns the node of the file behind an op, in words, or nothing.

    Raises:
        UnpadError: the proof fails: with the op, and the way from it to the result. SchemaError: an unknown name, or inputs without texts.
    """
    names = list(fetches)
    _check_name(mask, feeds, "mask")
    if row_scales:
        changed = with_row_scales(program, names, numbers)
        if isinstance(changed, Fault):
            raise _refusal(changed, names[0], program.global_block, source)
        program = changed
    block = program.global_block
    if side not in ("right", "left"):
        raise SchemaError.one_of("unpad: side", ("right", "left"), side)
    written: set[str] = {*feeds}
    for op in block.ops:
        for name in () if op.is_feed or op.is_fetch else op.output_names():
            if name in written and not block.var(name).persistable:
                raise UnpadError(f"unpad: {_op_text(op)} writes {name} again, and the proof follows each value from one op").told(op=op.type, seen=name)
            written.add(name)
    lengths = mask is not None and block.var(mask).spec.rank == 1
    padded = [n for n in feeds if _is_padded(block, n) and n != mask]
    if not padded:
        described = ", ".join(f"{n}: {block.var(n).spec.text()}" for n in feeds)
        raise SchemaError.must("unpad: the inputs", "one of texts at least, [texts, time, ...] with open sizes", described)
    times = {block.var(n).spec.known_dims[1] for n in padded}
    if len(times) > 1:
        described = ", ".join(f"{n}: {block.var(n).spec.text()}" for n in padded)
        raise SchemaError.must("unpad: the inputs of texts", "of one padded length, for their rows are those of the same texts", described)
    texts = [*padded, *([mask] if mask is not None and not lengths else [])]
    reader = AxisReader([block.var(n).spec.known_dims[0] for n in [*texts, *([mask] if mask else [])]], [block.var(n).spec.known_dims[1] for n in texts])
    proof = Proof(block, reader, next(iter(times)), side, numbers, RULES)
    for name in feeds:
        proof.values[name] = _input(block, name, reader, name == mask, masked, lengths, pad_id if name == padded[0] else None)
    proof.run()
    for name in names:
        fault = proof.fetch_fault(name)
        if fault is not None:
            raise _refusal(fault, name, block, source)
    only_rows = {n: n == mask for n in feeds}
    order = {n: only_rows[n] for n in [*padded, *(n for n in feeds if n not in padded)]}
    packer = Packer(proof, program, order, mask if mask and lengths else "", masked, pad_id or 0, packed_result)
    try:
        results = packer.write(names)
    except (NotRagged, Unsupported) as reason:
        fault = reason.fault if isinstance(reason, NotRagged) else Fault(None, str(reason))
        raise _refusal(fault, names[0], block, source) from None
    _drop_unused(packer.new, results)
    return UnpaddedProgram(packer.new, [n for n in feeds if n != mask], [packer.new.var(v.name) for v in results])


def _check_name(name: str | None, feeds: Sequence[str], argument: str) -> None:
    if name is not None and name not in feeds:
        raise SchemaError(f"unpad: {argument}={name!r} is not an input; the inputs are: {', '.join(feeds)}{did_you_mean(name, feeds)}")


def _is_padded(block: Block, name: str) -> bool:
    dims = block.var(name).spec.dims
    return dims is not None and len(dims) >= 2 and isinstance(dims[0], Dim) and isinstance(dims[1], Dim)


def _input(block: Block, name: str, reader: AxisReader, is_mask: bool, masked: int, lengths: bool, pad_id: int | None) -> Any:
    try:
        axes = reader.axes(block.var(name).spec.known_dims)
    except Unsupported as reason:
        raise SchemaError(f"unpad: the input {name} is {block.var(name).spec.text()}: {reason}") from None
    if is_mask and lengths:
        return filled(axes, lambda _: index_content(IndexForm.factor(LENGTH)))
    if is_mask:
        if axes != ((BATCH,), (ROWS,)):
            raise SchemaError.must(f"unpad: the mask {name}", "[texts, time]", block.var(name).spec.text())
        return filled(axes, lambda region: constant(float(masked if region else 1 - masked)))
    if pad_id is not None:
        return filled(axes, lambda region: constant(float(pad_id)) if region else Content(0.0, never=float(pad_id)))
    spec = block.var(name).spec
    low = 0.0 if spec.dtype is not None and spec.dtype.is_integer else -INFINITY  # ids, types and positions are counted from 0
    return filled(axes, lambda _: Content(low))


def _refusal(fault: Fault, fetch: str, block: Block, source: Callable[[Op], str]) -> UnpadError:
    """Return the error of a failed proof: the op, its line or its node, and the way to the result."""
    op = fault.op
    if op is None:
        return UnpadError(f"unpad: {fault.words}")
    way = _way(op, fetch, block)
    node = source(op)
    words = [f"unpad: {_op_text(op)}{f' of {node}' if node else ''}: {fault.words}"]
    if op in dynamic_quantizations(block):
        words.append("    its rows are quantized by the range of all texts; row_scales=True (--row-scales) gives each row a scale of its own")
    if way:
        steps = way if len(way) <= 8 else [*way[:4], f"... {len(way) - 7} more", *way[-3:]]
        words.append(f"    on its way to {fetch}: {' -> '.join(steps)}")
    if op.call_site is not None:
        words.append(f"    at {op.call_site.short()}")
    return UnpadError("\n".join(words)).told(op=op.type, required="no masked row reaches a text's own rows", seen=fault.words, site=op.call_site)


def _op_text(op: Op) -> str:
    return f"{op.type} ({next(iter(op.output_names()), '')})"


def _way(op: Op, fetch: str, block: Block) -> list[str]:
    """Return the ops from one to a result, the shortest way."""
    readers: dict[str, list[Op]] = {}
    for reader in block.ops:
        for name in reader.input_names():
            readers.setdefault(name, []).append(reader)
    queue: deque[tuple[str, list[str]]] = deque((n, [op.type]) for n in op.output_names())
    visited = {n for n, _ in queue}
    while queue:
        name, path = queue.popleft()
        if name == fetch:
            return path
        for reader in readers.get(name, ()):
            for new in reader.output_names():
                if new not in visited:
                    visited.add(new)
                    queue.append((new, [*path, reader.type]))
    return []


def _drop_unused(program: Program, fetches: Sequence[Variable]) -> None:
    """Leave out unneeded ops, and parameters without readers."""
    block = program.global_block
    needed = {v.name for v in fetches}
    for op in reversed(block.ops[:]):
        if any(n in needed for n in op.output_names()):
            needed |= set(op.input_names())
        else:
            block.remove_op(op)
    used = needed | {n for op in block.ops for n in op.output_names()}
    for name in [n for n, v in block.vars.items() if n not in used and (v.op is None)]:
        if not (name in block.vars and block.vars[name].need_check_feed):
            block.remove_variable(name)
    program.touch()
    program.infer()
