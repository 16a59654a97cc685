"""The display of variables and programs in a notebook, and of programs at a prompt: short, with the rest to unfold."""

from __future__ import annotations

from typing import Final

from foreshape.core.pictures.figures import plural, short_bytes, short_count
from foreshape.core.pictures.markup import Markup, card, cut, escape, folded, markup_table, preformatted, tag
from foreshape.language.operator.registry import layer_name
from foreshape.language.program.inputs import inputs_of, kept_variables, size_of
from foreshape.language.program.op import Op
from foreshape.language.program.program import Program
from foreshape.language.program.variable import Variable
from foreshape.language.text.writer import op_text
from foreshape.language.views.graph import draw
from foreshape.language.views.summary import Summary, dims_text

_OPS_DRAWN: Final = 5_000
_LINES: Final = 12
_WIDTH: Final = 100
_LISTED: Final = 200


def counts(program: Program) -> str:
    """Return ``176 ops in 1 block, 161 parameters with 25.6M numbers (97.7MiB)``."""
    parameters, _ = kept_variables(program)
    numbers = sum(v.spec.elements for v in parameters if v.spec.dims is not None and isinstance(v.spec.elements, int))
    size = sum(b for v in parameters if isinstance(b := size_of(v), int))
    ops = sum(len(block.ops) for block in program.blocks)
    parameter_words = f", {plural(len(parameters), 'parameter')} with {short_count(numbers) or '0'} numbers ({short_bytes(size) or '0B'})" if parameters else ""
    return f"{plural(ops, 'op')} in {plural(len(program.blocks), 'block')}{parameter_words}"


def program_repr(program: Program) -> str:
    """Return a program in a few lines: its counts, its inputs, its last ops."""
    program.refresh_quietly()
    lines = [f"Program: {counts(program)}"]
    inputs = inputs_of(program.global_block)
    lines += [f"  input {escape(v.name)}: {v.spec.text()}" for v in inputs[:4]]
    if len(inputs) > 4:
        lines.append(f"  and {plural(len(inputs) - 4, 'more input')}")
    ops = program.global_block.ops
    if len(ops) > _LINES:
        lines.append(f"  … {plural(len(ops) - _LINES // 2, 'op')}; print(program) has them all, program.summary() the layers")
        ops = ops[-(_LINES // 2) :]
    lines += [f"  {op_text(op)}" for op in ops]
    return "\n".join(cut(escape(line).replace("\n", " "), _WIDTH) for line in lines)


def program_html(program: Program) -> str:
    """Return a program for a notebook: its counts; unfolded its layers, its drawing, the accepted sizes, its ops."""
    program.refresh_quietly()
    ops = [op for block in program.blocks for op in block.ops]
    parts: list[object] = [_inputs(program)]
    if ops and len(ops) <= _OPS_DRAWN:
        summary = Summary(program)
        parts.append(folded("layers", Markup(summary._repr_html_()), open=True))  # pyright: ignore[reportPrivateUsage]
        parts.append(folded("drawing", tag("div", Markup(draw(program).svg), style="max-height:640px;overflow:auto")))
    if program.guard_list():
        parts.append(folded("which sizes it takes", preformatted(str(program.feeds))))
    if ops:
        listed = "\n".join(op_text(op) for op in ops[:_LISTED])
        ending = f"\n… {plural(len(ops) - _LISTED, 'more op')}: print(program) has them all" if len(ops) > _LISTED else ""
        parts.append(folded("ops" if not ending else f"the first {_LISTED} ops", preformatted(listed + ending)))
    return card(f"Program: {counts(program)}", *parts)


def _inputs(program: Program) -> Markup:
    inputs = inputs_of(program.global_block)
    return markup_table(("input", "type", "dims"), [(v.name, _dtype(v), dims_text(v)) for v in inputs[:20]]) if inputs else Markup("")


def variable_html(variable: Variable) -> str:
    """Return a variable for a notebook: its facts, its maker and readers; unfolded, the origin of each dim."""
    program, op = variable.block.program, variable.op
    program.refresh_quietly()
    site = variable.call_site
    size = size_of(variable)
    rows: list[tuple[str, object]] = [("type", variable.spec.text()), ("from", variable.role_words)]
    if size is not None:
        rows.append(("bytes", f"{size:,}" if isinstance(size, int) else str(size)))
    if site is not None:
        rows.append(("line", site.short()))
    readers = [reader for reader in variable.block.ops if variable.name in reader.input_names()] if variable.name in variable.block.vars else []
    if readers:
        rows.append(("read by", _listed(readers)))
    parts: list[object] = [markup_table(("", ""), rows)]
    if op is not None:
        parts.append(folded("its op", preformatted(op_text(op))))
    if variable.spec.dims:
        parts.append(folded("where its dims come from", preformatted(program.explain(variable))))
    return card(tag("code", cut(variable.name, 300)), *parts)


def _listed(ops: list[Op]) -> str:
    names = [layer_name(op.type) for op in ops[:8]]
    return ", ".join(names) + (f" and {len(ops) - 8:,} more" if len(ops) > 8 else "")


def _dtype(variable: Variable) -> str:
    return variable.dtype.name if variable.dtype is not None else variable.kind.name.lower()
