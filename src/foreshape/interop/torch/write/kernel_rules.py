"""Operators without a rule of their own: the kernel itself, in torch code, becomes a class of the written file."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from typing import TYPE_CHECKING, Any, Final

from foreshape.core.spec import LOD_TENSOR
from foreshape.interop.refused import Refused
from foreshape.interop.torch.write.helpers.own_gradients import straight_through, with_gradient, without_gradient
from foreshape.interop.torch.write.kernel_text import free_names, plain_text
from foreshape.interop.torch.write.numbers_code import number_code
from foreshape.interop.torch.write.plain_op import Several
from foreshape.language.operator.fields import Gradient
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import get
from foreshape.transforms.backward import GRAD

if TYPE_CHECKING:
    from foreshape.interop.torch.write.plain_op import PlainOp

_OWN_GRADIENTS: Final = frozenset(("cholesky_solve", "cvm", "data_norm", "eigh", "elementwise_heaviside", "nanmedian")) | frozenset(
    ("put_along_axis", "sigmoid_focal_loss", "smooth_l1_loss", "spectral_norm", "teacher_student_sigmoid_loss", "warprnnt")
)
"""Operators whose kernels autograd would go through in another way than their gradient does, or not at all."""
_WITHOUT_GRADIENT: Final = frozenset(("deformable_conv", "deformable_conv_v1", "linear_chain_crf"))
"""Operators, and gradients of them, with kernels writing into places as autograd does not follow: a backward pass through them is refused in words."""
_MODE, _BY_MODE = "is_test", "not self.training"
"""The attribute of operators with another form in a test, and its value where the program trains."""
_ROOMS: Final = {
    "foreshape.language.ops.update.": "it changes parameters, in training",
    "foreshape.language.ops.collective.": "it speaks with other ranks",
}


def kernel_rule(w: PlainOp) -> Any:
    """Return the call of an operator's kernel, whose source is written into the file. Raises `Refused` if it is more than torch code."""
    cls = type(w.operator)
    for room, reason in _ROOMS.items():
        if cls.__module__.startswith(room):
            raise Refused(reason)
    if (
        not cls.__module__.startswith("foreshape.language.ops.")
        or not hasattr(cls, "kernel")
        or cls.region
        or cls.random
        or cls.side_effects
        or cls.accumulates
    ):
        raise Refused("it is not written in torch code")
    for slot, names in (*w.op.input_slots.items(), *w.op.output_slots.items()):
        for name in names:
            variable = w.op.block.find(name)
            if variable is not None and variable.spec.kind is not LOD_TENSOR:
                raise Refused(f"{slot} is {variable.spec.kind}")
    if any(r.new_offsets and r.many for r in cls.schema.results):
        raise Refused("it gives several ragged results")
    name, attributes = _class_of(w, cls)
    arguments: list[str] = []
    for operand in cls.schema.operands:
        if operand.many:
            arguments.append(f"[{', '.join(w.all(operand.name))}]")
        else:
            arguments.append(w.optional(operand.name))
    if cls.kernel_offsets:
        arguments.append(f"offsets=[{', '.join(_offsets(w, o.name, o.many) for o in cls.schema.operands)}]")
    if cls.kernel_requested:
        arguments.append(f"requested=({''.join(f'{w.is_read(r.name)}, ' for r in cls.schema.results)})")
    run = _instance(name, attributes, w.of)
    if w.op.type.startswith("fake_") and "_quantize_dequantize_" in w.op.type:  # the gradient goes through as if nothing were rounded
        run = w.call(straight_through, run)
    if w.op.type in _WITHOUT_GRADIENT:
        run = w.call(without_gradient, run, repr(w.op.type))
    call = _with_gradient(w, cls, run, arguments) if w.op.type in _OWN_GRADIENTS else f"{run}({', '.join(arguments)})"
    results = cls.schema.results
    if any(r.many for r in results):
        parts = [w.let(call)] if len(results) == 1 else w.several(call, len(results))
        return tuple(
            [f"{part}[{index}]" for index in range(len(w.op.output_slots.get(r.name, ())))] if r.many else part for r, part in zip(results, parts, strict=True)
        )
    return call if len(results) == 1 and not results[0].new_offsets else Several(call)


def lacks_gradient(type: str) -> bool:
    """Tell whether a backward pass through an operator's written kernel is refused."""
    return type in _WITHOUT_GRADIENT or type == "with_gradient"


def _instance(name: str, attributes: list[str], operator: Any) -> str:
    values = ((n, getattr(operator, n)) for n in attributes)
    return f"{name}({', '.join(f'{n}={_BY_MODE if n == _MODE and not value else _value(value)}' for n, value in values)})"


def _with_gradient(w: PlainOp, cls: type[Operator], run: str, arguments: list[str]) -> str:
    """Return the call with the source of the gradient's kernel as its backward pass."""
    declared, back = cls.gradient, get(f"{cls.type}_grad")
    if not isinstance(declared, Gradient) or any(s.many for s in (*cls.schema.operands, *cls.schema.results)):
        raise Refused("its gradient is not written in torch code")
    operands, results = [o.name for o in cls.schema.operands], [r.name for r in cls.schema.results]
    name, attributes = _class_of(w, back)
    takes: list[tuple[str, int]] = []
    for slot in declared.inputs:
        base = slot.removesuffix(GRAD)
        takes.append(("g", results.index(base)) if slot != base else ("x", operands.index(slot)) if slot in operands else ("y", results.index(slot)))
    gives = [operands.index(slot.removesuffix(GRAD)) for slot in declared.gives]
    instance = _instance(name, attributes, w.of)
    fixed = f", requested=({'True, ' * len(gives)})" if back.kernel_requested else ""
    if back.kernel_offsets:
        fixed += f", offsets=[{', '.join(_offsets(w, slot, False) if slot in operands else 'None' for slot in declared.inputs)}]"
    if fixed:
        instance = f"partial({instance}{fixed})"
        w.writer.sources.imports["partial"] = "from functools import partial"
    return w.call(with_gradient, run, instance, takes, gives, *arguments)


def _value(value: Any) -> str:
    return number_code(value) if isinstance(value, float) else repr(value)


def _offsets(w: PlainOp, slot: str, many: bool) -> str:
    def offsets_at(index: int) -> str:
        spec = w.spec(slot, index)
        if spec.lod is None:
            return "None"
        offsets = w.writer.offsets_of(spec.lod)
        if offsets is None:
            raise Refused(f"nothing is known of the sequences of {slot}")
        return offsets

    count = w.count(slot)
    return f"[{', '.join(offsets_at(index) for index in range(count))}]" if many else offsets_at(0) if w.has(slot) else "None"


_CLASSES: dict[type[Operator], tuple[str, list[str], dict[str, Any]] | str] = {}


def _class_of(w: PlainOp, cls: type[Operator]) -> tuple[str, list[str]]:
    """Write the class of an operator's kernel into the file, and return its name and attributes."""
    entry = _CLASSES.get(cls)
    if entry is None:
        try:
            entry = _text_of(cls)
        except (Refused, OSError, TypeError) as refused:
            entry = str(refused)
        _CLASSES[cls] = entry
    if isinstance(entry, str):
        raise Refused(entry)
    text, attributes, namespace = entry
    w.writer.sources.add_text(cls.__name__, text, namespace)
    return cls.__name__, attributes


def _text_of(cls: type[Operator]) -> tuple[str, list[str], dict[str, Any]]:
    methods: dict[str, str] = {}
    namespace: dict[str, Any] = {}
    attributes: dict[str, None] = {}
    constants: dict[str, str] = {}
    waiting = ["kernel"]
    while waiting:
        name = waiting.pop()
        if name in methods:
            continue
        owner = next(c for c in cls.__mro__ if name in vars(c))
        function: Any = vars(owner)[name]
        plain: Any = inspect.unwrap(getattr(function, "__func__", getattr(function, "func", getattr(function, "fget", function))))
        source = textwrap.dedent(inspect.getsource(plain))
        if name == "kernel" and plain.__name__ != name:  # of a gradient, within the class of its operator
            source = _without_decorators(source)
        source = plain_text(source)
        source = re.sub(r"self\.schema\.operands\[(\d+)\]\.name", lambda match: repr(cls.schema.operands[int(match[1])].name), source)
        tree = ast.parse(source)
        names = free_names(source)
        if "getattr(self," in source:
            attributes |= dict.fromkeys(cls.schema.attributes)
        if names & {"super", "__class__"}:
            raise Refused(f"its kernel uses the base of {owner.__name__}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                _sort(cls, node.attr, attributes, constants, waiting)
        clash = {n for n in names if n in namespace and n in plain.__globals__ and namespace[n] is not plain.__globals__[n]}
        if clash:
            raise Refused(f"its kernel uses two things of the name {min(clash)}")
        namespace |= {n: plain.__globals__[n] for n in names if n in plain.__globals__}
        methods[name] = source
    if methods["kernel"].startswith("@"):
        raise Refused("its kernel is decorated")
    methods["kernel"] = methods["kernel"].replace("def kernel(", "def __call__(", 1)
    words = (inspect.getdoc(cls) or "").strip()
    lines = [f"class {cls.__name__}:", *textwrap.indent(f'"""{words}\n"""' if "\n" in words else f'"""{words}"""', "    ").splitlines(), ""]
    lines += [f"    {n} = {v}" for n, v in constants.items()] + ([""] if constants else [])
    if attributes:
        lines += [f"    def __init__(self, {', '.join(attributes)}):", *[f"        self.{n} = {n}" for n in attributes], ""]
    for text in methods.values():
        lines += [*textwrap.indent(text, "    ").splitlines(), ""]
    return "\n".join(lines).rstrip(), list(attributes), namespace


def _without_decorators(source: str) -> str:
    function: Any = ast.parse(source).body[0]
    function.decorator_list, function.name = [], "kernel"
    return ast.unparse(function)


def _sort(cls: type[Operator], name: str, attributes: dict[str, None], constants: dict[str, str], waiting: list[str]) -> None:
    if name in cls.schema.attributes:
        attributes[name] = None
        return
    value: Any = inspect.getattr_static(cls, name, None)
    if callable(value) or isinstance(value, (staticmethod, classmethod, property)) or hasattr(value, "func"):
        waiting.append(name)
    elif isinstance(value, (int, float, str, tuple, dict)):
        constants[name] = repr(value)  # pyright: ignore[reportUnknownArgumentType]
    else:
        raise Refused(f"its kernel uses {cls.__name__}.{name}")
