"""Programs that no library writes, whole as messages: every operator, loops and branches, with variables, slots and attributes that are odd."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer
from foreshape.compiler.memory import Plan
from foreshape.core.dims import evaluate, symbols_of
from foreshape.core.spec import LOD_TENSOR, LOD_TENSOR_ARRAY, SELECTED_ROWS, TENSOR_KINDS, Spec
from foreshape.errors import ForeshapeError
from foreshape.language.program import Variable
from foreshape.language.program.inputs import inputs_of
from foreshape.language.wire import framework_pb2 as pb
from foreshape.runtime.report.write import report_page
from support.harness import build, operators
from support.survival import checked_words

SAMPLED = [c for c in operators() if c.samples]
SMALL = 100_000
"""No more elements than this are fed."""
LIMIT = "256 MiB"
NO_WORDS = (AttributeError, TypeError, KeyError, NameError, AssertionError, ZeroDivisionError)
"""What a kernel of ours fails by that has not been thought of; torch words what it refuses by others,"""
OWN_INDEX = ("list index", "tuple index", "pop from")
"""and an index of a tensor otherwise."""


# --- what they are made from


@cache
def of_operator(at: int, sample: int) -> bytes | None:
    """A program of one op, that of an operator's sample; its inputs are fed."""
    cls = SAMPLED[at]
    try:
        return build(cls, dict(cls.samples[sample % len(cls.samples)].arguments)).program.to_bytes()
    except ForeshapeError:
        return None


def _branch() -> None:
    x = layer.data("x", shape=["batch", 3])
    layer.relu(layer.cond(layer.mean(x) > 0.0, lambda: x * 2.0, lambda: x - 1.0))


def _loop() -> None:
    x = layer.data("x", shape=["batch", 3])
    i, n = layer.fill_constant([1], "int64", 0), layer.fill_constant([1], "int64", 3)
    layer.while_loop(lambda i, h: i < n, lambda i, h: [i + 1, layer.fc(h, 3)], [i, x])


def _steps() -> None:
    words = layer.data("words", shape=["words", 4], lod_level=1)
    layer.fc(layer.lstm(words, 5)[0], 2)


def _ragged() -> None:
    words = layer.data("words", shape=["words", 4], lod_level=1)
    layer.fc(layer.sequence_expand(layer.fc(layer.sequence_pool(layer.sequence_softmax(layer.fc(words, 1)), "max"), 2), words), 2)


def _trained() -> None:
    x, y = layer.data("x", shape=["batch", 4]), layer.data("y", shape=["batch", 1], dtype="int64")
    fs.optimizer.Adam(0.1).minimize(layer.mean(layer.cross_entropy(layer.fc(layer.fc(x, 5, "relu"), 3, "softmax"), y)))


def _images() -> None:
    x = layer.data("x", shape=["batch", 3, 8, 8])
    layer.fc(layer.pool2d(layer.batch_norm(layer.conv2d(x, 4, 3)), 2, stride=2), 5, "softmax")


@cache
def networks() -> list[bytes]:
    """Networks with blocks, raggedness, gradients and updates."""
    out: list[bytes] = []
    for describe in (_branch, _loop, _steps, _ragged, _trained, _images):
        main = fs.Program()
        with fs.program_guard(main, fs.Program()):
            describe()
        out.append(main.to_bytes())
    folder = Path(__file__).parents[1] / "control" / "paddlepaddle"
    return out + [p.read_bytes() for p in sorted(folder.glob("*.pdmodel"))]


def base(rng: random.Random) -> pb.ProgramDesc:
    """A program of one operator, of two one after the other, or a network."""
    kind = rng.random()
    if kind < 0.25:
        return pb.ProgramDesc.FromString(rng.choice(networks()))
    out: pb.ProgramDesc | None = None
    while out is None or (kind > 0.75 and len(out.blocks[0].ops) < 2):
        data = of_operator(rng.randrange(len(SAMPLED)), rng.randrange(4))
        if data is None:
            continue
        more = pb.ProgramDesc.FromString(data)
        if out is None:
            out = more
        else:
            _append(out, more, rng)
    return out


def _append(program: pb.ProgramDesc, more: pb.ProgramDesc, rng: random.Random) -> None:
    """Put another program's ops behind, where some of their inputs are results of those before."""
    made = [n for op in program.blocks[0].ops for s in op.outputs for n in s.arguments]
    names = {v.name: f"{v.name}.2" for v in more.blocks[0].vars}
    fed = [n for op in more.blocks[0].ops for s in op.inputs for n in s.arguments]
    for name in fed:
        if made and rng.random() < 0.5:
            names[name] = rng.choice(made)
    for variable in more.blocks[0].vars:
        if names[variable.name] == f"{variable.name}.2":
            program.blocks[0].vars.add().CopyFrom(variable)
            program.blocks[0].vars[-1].name = names[variable.name]
    for op in more.blocks[0].ops:
        new = program.blocks[0].ops.add()
        new.CopyFrom(op)
        for slots in (new.inputs, new.outputs):
            for slot in slots:
                slot.arguments[:] = [names.get(n, n) for n in slot.arguments]


# --- how they are made odd


def _tensor(variable: Any) -> Any:
    """The message of a variable's dims."""
    kind = variable.type
    if kind.HasField("selected_rows"):
        return kind.selected_rows
    return kind.tensor_array.tensor if kind.HasField("tensor_array") else kind.lod_tensor.tensor


def _plainly(variable: Any) -> Any:
    """A variable without what is kept of symbols, which would have to agree."""
    variable.ClearField("extra")
    return variable


def _dims(variable: Any, rng: random.Random) -> None:
    dims = _tensor(_plainly(variable)).dims
    dims[:] = rng.choice(([], [-1], [-1, -1], [1], [0], [-1, *dims], dims[1:], dims[:-1], [*dims, 1], [-1] * len(dims), [1] * len(dims), [2] * len(dims)))


def _levels(variable: Any, rng: random.Random) -> None:
    if variable.type.type in (7, 13):
        holder = _plainly(variable).type.lod_tensor if variable.type.type == 7 else variable.type.tensor_array
        holder.lod_level = rng.choice((0, 1, 1, 1, 2, 3))
        if rng.random() < 0.4:
            _tensor(variable).dims[:] = rng.choice(([], [-1], [-1, 1]))


def _type(variable: Any, rng: random.Random) -> None:
    _tensor(_plainly(variable)).data_type = rng.choice((0, 1, 2, 3, 4, 5, 6, 20, 21, 22, 23, 24))


def _kind(variable: Any, rng: random.Random) -> None:
    kind = rng.choice((7, 8, 9, 10, 11, 12, 13, 17, 25, 26))
    dims, of = list(_tensor(_plainly(variable)).dims), _tensor(variable).data_type
    variable.ClearField("type")
    variable.type.type = kind
    if kind in (7, 8, 13) and rng.random() < 0.8:
        tensor = {7: variable.type.lod_tensor.tensor, 8: variable.type.selected_rows, 13: variable.type.tensor_array.tensor}[kind]
        tensor.data_type = of
        tensor.dims[:] = dims


def _nothing_known(variable: Any, rng: random.Random) -> None:
    _plainly(variable).ClearField("type")
    variable.type.type = rng.choice((7, 7, 13, 8))


def _kept(variable: Any, rng: random.Random) -> None:
    variable.persistable = not variable.persistable


def _flags(variable: Any, rng: random.Random) -> None:
    variable.need_check_feed = rng.random() < 0.5
    variable.is_parameter = rng.random() < 0.5
    variable.stop_gradient = rng.random() < 0.5


OF_VARIABLES: tuple[Callable[[Any, random.Random], None], ...] = (_dims, _dims, _levels, _levels, _type, _kind, _nothing_known, _kept, _flags)


def _of_slots(block: Any, op: Any, rng: random.Random) -> None:
    """A slot that is unknown, missing, without names, with one more, or with a name that nothing describes."""
    slots = op.inputs if rng.random() < 0.4 else op.outputs
    names = [v.name for v in block.vars] or ["x"]
    kind = rng.randrange(6)
    if kind < 2 or not slots:
        new = slots.add()
        new.parameter = rng.choice(("Odd", "XShape", "Mask", "Out", "X"))
        if any(s.parameter == new.parameter for s in slots[:-1]):
            new.parameter = "Odd2"
        new.arguments[:] = [rng.choice(names) if rng.random() < 0.3 else _new_variable(block, rng)]
        return
    slot = rng.choice(slots)
    if kind == 2:
        slots.remove(slot)
    elif kind == 3:
        slot.arguments[:] = rng.choice(([], ["@EMPTY@"], ["nowhere"], [""]))
    elif kind == 4:
        slot.arguments[:] = [*slot.arguments, rng.choice(names)]
    elif slot.arguments:
        slot.arguments[rng.randrange(len(slot.arguments))] = rng.choice(names)


def _new_variable(block: Any, rng: random.Random) -> str:
    new = block.vars.add()
    new.name = f"odd_{len(block.vars)}"
    new.type.type = 7
    new.type.lod_tensor.tensor.data_type = rng.choice((5, 5, 3))
    new.type.lod_tensor.tensor.dims[:] = rng.choice(([-1, -1], [-1, 4], [], [-1]))
    new.type.lod_tensor.lod_level = rng.choice((0, 0, 1))
    return new.name


def _of_attributes(op: Any, rng: random.Random) -> None:
    if not op.attrs:
        return
    attr = rng.choice(op.attrs)
    number = rng.choice((-1, 0, 1, 2, 3, 7, -(2**31), 2**31 - 1))
    if attr.HasField("i"):
        attr.i = number
    elif attr.HasField("l"):
        attr.l = number
    elif attr.HasField("f"):
        attr.f = rng.choice((0.0, -1.0, math.inf, math.nan, 1e30))
    elif attr.HasField("b"):
        attr.b = not attr.b
    elif attr.HasField("s"):
        attr.s = rng.choice(("", "max", "X", "NHWC"))
    elif attr.ints:
        attr.ints[:] = rng.choice(([], [number], [number] * len(attr.ints), attr.ints[1:], [*attr.ints, 1]))
    elif attr.longs:
        attr.longs[:] = rng.choice(([], [number], attr.longs[1:]))
    else:
        op.attrs.remove(attr)


def crafted(rng: random.Random) -> bytes:
    """A program that is whole as a message, with one to four things in it that are odd."""
    program = base(rng)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        block = rng.choice(program.blocks)
        kind = rng.random()
        if kind < 0.6 and block.vars:
            rng.choice(OF_VARIABLES)(rng.choice(block.vars), rng)
        elif kind < 0.85 and block.ops:
            _of_slots(block, rng.choice(block.ops), rng)
        elif block.ops:
            _of_attributes(rng.choice(block.ops), rng)
    return program.SerializePartialToString()


# --- how they are used


def use(data: bytes, commands: Callable[[], None]) -> str:
    """Everything that looks at a program, and a run of it. Anything but the package's own errors comes out as it is.

    Args:
        commands: calls the command on the file.
    """
    try:
        fs.load_program(data)
    except fs.FormatError as error:
        checked_words(error)
        return "refused"
    commands()
    program = fs.load_program(data)
    unknown, errors = program.diagnose()
    for variable in list(program.all_variables()):
        _told(lambda variable=variable: program.explain(variable))
    for look in (lambda: str(program), lambda: repr(program), lambda: program.summary().text(), lambda: program.graph(), lambda: program.feeds.lines(),
                 lambda: program.feeds.smallest, lambda: report_page(program), lambda: program.clone().to_bytes()):  # fmt: skip
        _told(look)
    if errors:
        return "read, with errors"
    results = [v for v in program.global_block.vars.values() if v.op is not None and v.kind in TENSOR_KINDS and not v.persistable]
    asked = [v.name for v in results[-2:]]
    _told(lambda: _planned(program, asked))
    if unknown:
        return "read, with unknown operators"
    return "run" if _told(lambda: _run(program, asked)) else "read"


def _told(do: Callable[[], Any]) -> bool:
    """Whether it gave something, and no error of the package."""
    try:
        do()
    except ForeshapeError as error:
        checked_words(error)
        return False
    return True


def _planned(program: fs.Program, asked: list[str]) -> None:
    plan = Plan(program, asked)
    sizes = dict.fromkeys(plan.symbols, 2)
    str(plan.peak_formula())
    for one in (plan.peak, plan.breakdown, plan.holders, plan.arena, plan.lower_bound, plan.unknown):
        one(**sizes)


def _run(program: fs.Program, asked: list[str]) -> None:
    scope, feed = fs.Scope(), {}
    for block in program.blocks:
        for variable in block.vars.values():
            if variable.persistable and variable.kind is LOD_TENSOR and variable.spec.dims is not None and variable.dtype is not None:
                scope.set(variable.name, _numbers(variable.spec))
    for variable in inputs_of(program.global_block):
        value = _fed(variable)
        if value is not None:
            feed[variable.name] = value
    executor = fs.Executor(seed=1, memory_limit=LIMIT)
    try:
        executor.run(program, feed, asked, scope)
    except fs.FeedError:
        pass
    except fs.ExecutionError as error:
        cause = error.__cause__
        if isinstance(cause, NO_WORDS) or (isinstance(cause, IndexError) and str(cause).startswith(OWN_INDEX)):
            raise cause from None
        raise


def _sizes(spec: Spec) -> list[int]:
    return [evaluate(d, dict.fromkeys(symbols_of(d), 2)) for d in spec.known_dims]


def _numbers(spec: Spec) -> Any:
    sizes = _sizes(spec)
    if math.prod(max(s, 1) for s in sizes) > SMALL:
        raise fs.FeedError("too large to be tried")
    return np.ones(sizes, spec.known_dtype.numpy_name or "float32")


def _fed(variable: Variable) -> Any:
    spec = variable.spec
    if spec.dims is None or spec.dtype is None:
        return np.ones(2, "float32")
    numbers = _numbers(spec)
    if spec.kind is SELECTED_ROWS:
        return fs.SelectedRows(np.arange(len(numbers)), numbers, len(numbers)) if numbers.ndim else None
    if spec.kind is LOD_TENSOR_ARRAY:
        return None
    if spec.lod is not None and numbers.ndim:
        lengths: list[list[int]] = [[1] * len(numbers)]
        while len(lengths) < spec.lod_level:
            lengths.insert(0, [1] * len(lengths[0]))
        return fs.LoDTensor(numbers, lengths)
    return numbers
