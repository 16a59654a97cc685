"""The text form of a program, for people, and for `foreshape.language.text.reader` to read back to an equal program.

Variables without an op come first, then the ops with their results. Attributes at their usual values are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from foreshape.core.spec import KINDS, LOD_TENSOR_ARRAY, SELECTED_ROWS, TENSOR_KINDS, Spec
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.fields import REQUIRED
from foreshape.language.operator.registry import find
from foreshape.language.program.block import Block
from foreshape.language.program.call_site import Site
from foreshape.language.program.messages import shown_file
from foreshape.language.program.op import Op
from foreshape.language.program.program import Program
from foreshape.language.program.scopes import ATTRIBUTE
from foreshape.language.program.variable import Variable
from foreshape.language.text.attribute_layout import AttributeLayouts, Layout, default_of, own_layout, same, type_of
from foreshape.language.text.literal import attribute_text, escape, float_text, name_text, quoted

FLAGS: Final = ("persistable", "need_check_feed", "is_parameter", "stop_gradient", "trainable")
DEFAULT_FLAGS: Final[Mapping[str, tuple[bool, ...]]] = {
    "input": (False, True, False, True, True),
    "parameter": (True, False, True, False, True),
    "state": (True, False, False, False, True),
    "constant": (True, False, False, False, True),
    "variable": (False, False, False, False, True),
}
"""The first word of a variable's line -> its flags."""
PLAIN_FILE: Final = r"[A-Za-z0-9_.@<>/+-]+"
_PLAIN_FILE: Final = re.compile(PLAIN_FILE + r"\Z")
_WRITTEN_VALUES: Final = 64
"""A constant array of more elements is written as the hexadecimal digits of its bytes."""


def op_text(op: Op) -> str:
    """Return one op on one line, with the specs of its results."""
    results = {n: op.block.vars[n] for n in op.output_names() if n in op.block.vars}
    return _op_line(op, results, None)


def settings_text(op: Op) -> str:
    """Return the attributes of an op with unusual values, as in its line; without its role."""
    return ", ".join(a for a in _attributes(op, None)[1] if not a.startswith(("op_role=", "op_role_var=")))


def block_text(block: Block) -> str:
    """Return one block, line by line."""
    return "\n".join(_block_lines(block, AttributeLayouts(o.attributes for o in block.ops)))


def program_text(program: Program) -> str:
    """Return the whole program, with its open guards as comments at the end."""
    layouts = AttributeLayouts(o.attributes for o in program.all_ops())
    lines: list[str] = []
    if program.format_version:
        lines.append(f"format_version {program.format_version}")
    if program.random_seed:
        lines.append(f"random_seed {program.random_seed}")
    for block in program.blocks:
        if lines:
            lines.append("")
        lines.extend(_block_lines(block, layouts))
    tail = list(_layout_lines(layouts))
    if program.op_versions is not None:
        tail.append(f'op_versions "{program.op_versions.hex()}"')
    if program.unknown_fields:
        tail.append(f'unknown "{program.unknown_fields.hex()}"')
    tail += [f"# guard: {escape(str(g)).replace(chr(10), ' ')}" for g in program.guard_list()]
    return "\n".join([*lines, "", *tail] if tail else lines)


# --- blocks


def _block_lines(block: Block, layouts: AttributeLayouts) -> Iterator[str]:
    about: list[str] = []
    if block.parent_idx != (-1 if block.idx == 0 else 0) or block.idx:
        about.append(f"parent {block.parent_idx}")
    if block.forward_idx != -1:
        about.append(f"forward {block.forward_idx}")
    if block.unknown_fields:
        about.append(f'unknown "{block.unknown_fields.hex()}"')
    yield f"block {block.idx}" + (f" ({', '.join(about)})" if about else "")
    results = _made_by_ops(block)
    for name, variable in block.vars.items():
        if name not in results:
            yield _variable_line(variable)
    for op in block.ops:
        yield _op_line(op, results, layouts)
    order = order_words(list(block.vars), names_by_use(block))
    if order:
        yield f"order {order}"


def _made_by_ops(block: Block) -> dict[str, Variable]:
    """Return the variables described at the ops that make them; the others have lines of their own."""
    results: dict[str, Variable] = {}
    for op in block.ops:
        for name in op.output_names():
            variable = block.vars.get(name)
            if (
                variable is not None
                and variable.op is op
                and name not in results
                and not (variable.persistable or variable.value is not None or variable.extra_attributes or variable.unknown_fields)
            ):
                results[name] = variable
    return results


def names_by_use(block: Block) -> list[str]:
    """Return a block's variables in the order of their use by ops, inputs first; then the unused ones."""
    used: dict[str, None] = {}
    for op in block.ops:
        for slots in (op.inputs, op.outputs):
            for names in slots.values():
                for name in names:
                    if name in block.vars:
                        used[name] = None
    for name in block.vars:
        used[name] = None
    return list(used)


def order_words(names: list[str], by_use: list[str]) -> str:
    """Describe the order of ``names``: nothing if as used, ``sorted``, or runs of positions among those by use."""
    if names == by_use:
        return ""
    if names == sorted(names):
        return "sorted"
    positions = {name: position for position, name in enumerate(by_use)}
    runs: list[list[int]] = []
    for name in names:
        position = positions[name]
        if runs and runs[-1][1] + 1 == position:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    return " ".join(str(a) if a == b else f"{a}:{b}" for a, b in runs)


# --- variables


def spec_text(spec: Spec, name: str) -> str:
    """Return a spec in the text form; ``by y`` names the owner of ragged rows' offsets, if not the variable itself."""
    if spec.kind not in TENSOR_KINDS:
        is_known = spec.kind in KINDS
        return spec.kind.name.lower() if is_known else f"kind {name_text(spec.kind.name)}={spec.kind.code}"
    head = {SELECTED_ROWS: "rows ", LOD_TENSOR_ARRAY: "array "}.get(spec.kind, "")
    lod = spec.lod
    tail = "" if lod is None or lod.source == name else f" by {name_text(lod.source)}"
    if lod is not None and not spec.dims:
        tail += f" lod({', '.join(map(str, lod.counts))})"
    if spec.dtype is None and spec.dims is None:
        return f"{head}?{tail}"
    dtype = spec.dtype.short if spec.dtype is not None else "?"
    if spec.dims is None:
        return f"{head}{dtype}[?]{tail}"
    dims = [str(d) for d in spec.dims]
    if lod is not None and dims:
        dims[0] = " | ".join([dims[0], *(str(c) for c in reversed(lod.counts))])
    return f"{head}{dtype}[{', '.join(dims)}]{tail}"


def _flags(variable: Variable) -> tuple[bool, ...]:
    return (variable.persistable, variable.need_check_feed, variable.is_parameter, variable.stop_gradient, variable.trainable)


def word_of(variable: Variable) -> str:
    """Return the first word of a variable's own line."""
    if variable.value is not None:
        return "constant"
    if variable.is_parameter:
        return "parameter"
    if variable.persistable:
        return "state"
    return "input" if variable.need_check_feed else "variable"


def _described(variable: Variable, word: str) -> str:
    """Return name, certainty, spec, and the flags not implied by the word."""
    settings = [f"{flag}={has}" for flag, has, usual in zip(FLAGS, _flags(variable), DEFAULT_FLAGS[word], strict=True) if has != usual]
    if variable.extra_attributes:
        settings.append("attributes=[" + ", ".join(f'"{x.hex()}"' for x in variable.extra_attributes) + "]")
    if variable.unknown_fields:
        settings.append(f'unknown="{variable.unknown_fields.hex()}"')
    text = f"{name_text(variable.name)}{'' if variable.known else '?'}: {spec_text(variable.entry_spec, variable.name)}"
    if variable.value is not None:
        text += f" = {value_text(variable.spec, variable.value)}"
    elif variable.op is None and variable.spec.value is not None:
        text += f" known [{', '.join(map(str, variable.spec.value))}]"
    return text + (f" {{{', '.join(settings)}}}" if settings else "")


def _variable_line(variable: Variable) -> str:
    word = word_of(variable)
    return f"{word} {_described(variable, word)}" + (_site_text(variable.site) if variable.op is None else "")


def value_text(spec: Spec, value: Any) -> str:
    """Return a constant value."""
    if spec.kind not in TENSOR_KINDS:
        return _scalars(value)
    import numpy

    dtype = spec.known_dtype
    array = numpy.asarray(value).astype(numpy.dtype(dtype.numpy_name or "float32").newbyteorder("<"))
    if array.ndim == 0 or array.size == 1:
        return _scalars(array.reshape(-1)[0].item(), single=dtype.itemsize <= 4)
    if array.size > _WRITTEN_VALUES or (dtype.is_floating and bool(numpy.isnan(array).any())):
        return f'raw "{array.tobytes().hex()}"'
    return _scalars(array.reshape(-1).tolist(), single=dtype.itemsize <= 4)


def _scalars(value: Any, single: bool = False) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join([_scalars(v, single) for v in value])}]"  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, str):
        return quoted(value)
    return float_text(value, single) if isinstance(value, float) else repr(value)


# --- ops


def _op_line(op: Op, results: Mapping[str, Variable], layouts: AttributeLayouts | None) -> str:
    ins = ", ".join(f"{name_text(s)}={name_text(n[0]) if len(n) == 1 else _list(n)}" for s, n in op.inputs.items())
    outs = _results(op, results)
    number, attributes = _attributes(op, layouts)
    line = f"{outs} = " if outs else ""
    line += f"{name_text(op.type)}({ins})"
    if number > 1:
        line += f" layout {number}"
    if attributes:
        line += f" {{{', '.join(attributes)}}}"
    if op.is_target:
        line += " target"
    if op.unknown_fields:
        line += f' unknown "{op.unknown_fields.hex()}"'
    return line + _site_text(op.site)


def _list(names: Sequence[str]) -> str:
    return f"[{', '.join(map(name_text, names))}]"


def _results(op: Op, variables: Mapping[str, Variable]) -> str:
    """Return the results; with their slots unless these follow from the operator's schema."""
    outputs = op.outputs
    if not outputs:
        return ""
    written: set[str] = set()

    def text_of(name: str) -> str:
        variable = variables.get(name)
        if variable is None or variable.op is not op or name in written:
            return name_text(name)
        written.add(name)
        return _described(variable, "variable")

    cls = find(op.type)
    if cls is not None:
        results = cls.schema.results
        one_list = len(results) == 1 and results[0].many
        if list(outputs) == [r.name for r in results[: len(outputs)]] and all(n if one_list else len(n) == 1 for n in outputs.values()):
            return ", ".join(text_of(n) for names in outputs.values() for n in names)
    return ", ".join(f"{name_text(s)}={text_of(n[0]) if len(n) == 1 else '[' + ', '.join(map(text_of, n)) + ']'}" for s, n in outputs.items())


def _attributes(op: Op, layouts: AttributeLayouts | None) -> tuple[int, list[str]]:
    """Return the number of the op's layout, and the attributes with unusual values."""
    attributes = op.attributes
    cls = find(op.type)
    if cls is None:
        return 1, _typed(op)
    number, layout = layouts.of(attributes) if layouts is not None else (1, _alone(op))
    values, out, roles = attributes.values, dict[str, None](), list[str]()
    for item in layout:
        value = values.get(item.name)
        usual = default_of(cls, item)
        if usual is REQUIRED or not same(value, usual):
            out[f"{name_text(item.name)}={attribute_text(type_of(cls, item), value)}"] = None
    placed = {i.name for i in layout} if cls.schema.later else ()
    for name, later in cls.schema.later.items():
        if name in values and name not in placed and (layouts is not None or not same(values[name], later.default)):
            out[f"{name}={attribute_text(later.type, values[name])}"] = None
    scope = values.get(ATTRIBUTE)
    if isinstance(scope, str) and not any(item.name == ATTRIBUTE for item in layout) and (layouts is not None or scope not in ("", "/")):
        out[f"{ATTRIBUTE}={attribute_text(AttrType.STRING, scope)}"] = None
    if op.role:
        roles.append(f"op_role={op.role}")
    if op.role_variables:
        roles.append(f"op_role_var={attribute_text(AttrType.STRINGS, op.role_variables)}")
    return number, [*out, *roles]


def _alone(op: Op) -> Layout:
    """Return the layout for an op shown alone: the attributes of its schema."""
    cls = find(op.type)
    return () if cls is None else tuple(i for i in own_layout(cls) if i.name in cls.schema.attributes and i.name in op.attributes.values)


def _typed(op: Op) -> list[str]:
    """Return all attributes of an op with an unknown operator, with their types, in their order."""
    out: list[str] = []
    roles = {"op_role": op.role, "op_role_var": op.role_variables}
    for name, type, value in op.attributes.entries:
        stored = roles[name] if value is None and name in roles else value
        out.append(f"{name_text(name)}: {type.name}={attribute_text(type, stored)}")
    return out


def _layout_lines(layouts: AttributeLayouts) -> Iterator[str]:
    for type in layouts.by_type:
        cls = find(type)
        for number, layout in enumerate(layouts.written(type), 1):
            items = [name_text(i.name) if i.type is None else f"{name_text(i.name)}: {i.type.name}={attribute_text(type_of(cls, i), i.usual)}" for i in layout]
            yield f"layout {name_text(type)} {number}: {', '.join(items)}".rstrip()


def _site_text(site: Site) -> str:
    if site is None:
        return ""
    file = shown_file(site[0])
    return f"  # {file if _PLAIN_FILE.match(file) else quoted(file)}:{site[1]}"
