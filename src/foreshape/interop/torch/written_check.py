"""Written torch code beside its program: the results, gradients and changed values of both at small sizes, before the code is handed out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from foreshape.compiler.lowering import lower
from foreshape.compiler.lowering.threads import work_of_all
from foreshape.core.spec import LOD_TENSOR
from foreshape.errors import ForeshapeError, FormatError
from foreshape.interop.torch.exported_sequences import inputs_of, refused_op
from foreshape.interop.torch.network_steps import NetworkSteps
from foreshape.interop.torch.torch_module import TorchNetwork
from foreshape.interop.torch.untyped_torch import is_list, torch
from foreshape.interop.torch.write.numbers_code import one_symbol
from foreshape.interop.torch.write.plain_source import PlainSource
from foreshape.interop.torch.write.stopped_gradients import lacks_gradient
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program import Op, Program
from foreshape.language.program.call_site import warn_user
from foreshape.language.program.op import is_empty_name
from foreshape.runtime.engine import Scope
from foreshape.transforms.passes.framework import named

MOST_WORK: Final = 2 * 10**10
"""The most multiply-adds of a forward pass that is compared at other than the smallest sizes, and in training."""
MOST_NUMBERS: Final = 3 * 10**8
"""The most numbers of parameters of such a network."""
_SMALL: Final = (2, 3, 5, 4, 6)
"""The wished sizes of the symbols in the second comparison, in the order of the inputs' dims."""
_ROOM: Final = {2: 5e-2}
"""Bytes of an element -> the greatest difference, as a part of the largest number; 1e-3 for the others."""
_LEAST: Final = 1e-2
"""A gradient is compared with its largest number, or with this part of the largest of all: sums that cancel out leave rounding alone."""
_NUDGE: Final = 1e-5
"""A change of all numbers by this part shows how far a network carries rounding."""
_AMPLIFIED: Final = 30.0
"""The difference of the torch code may be this many times as large."""
_REFUSALS: Final = (ForeshapeError, RuntimeError, IndexError, ValueError)

Values = dict[str, Any]
Sizes = Mapping[str, list[int]]


class WrittenNetwork(NamedTuple):
    """A network in both forms.

    Attributes:
        module: the written code.
        source: its text, and the names in it.
        program: its program, as ``train()`` runs it.
        feeds, fetches: the names of its inputs and results.
        scope: holds the program's values.
        write: writes a program with these results as a module with the same values.
    """

    module: Any
    source: PlainSource
    program: Program
    feeds: Sequence[str]
    fetches: Sequence[str]
    scope: Scope
    write: Callable[[Program, Sequence[str]], tuple[Any, PlainSource]]


class _RunValues(NamedTuple):
    """The numbers of a run, by name."""

    results: Values
    gradients: Values
    changed: Values


class _ValueDifference(NamedTuple):
    """A difference as a part of the largest number, and its words where it is more than rounding."""

    size: float
    words: str = ""


def check_written(of: WrittenNetwork, trains: bool = True) -> None:
    """Compare a module with its program at the smallest sizes, and at other small ones: in ``eval()``, and in ``train()``.

    Training is compared with dropout switched off, by its results, the gradients of the parameters and the values it changes. Results behind other random
    numbers have their dims and element types compared. A network past `MOST_WORK` or `MOST_NUMBERS` is compared in ``eval()`` at the smallest sizes alone.
    The module is left as it was. A warning says why nothing was compared, where the program refuses all inputs drawn for it.

    Args:
        trains: compare training too.

    Raises:
        FormatError: they differ. The message has the result, the difference, and the operator where it can be told.
    """
    mode = of.module.training
    kept = {key: value.clone() for key, value in of.module.named_buffers()}
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            unable = _compare(of, trains)
    finally:
        of.module.train(mode).zero_grad()
        _put(of.module, kept)
    if unable:
        warn_user(f"the torch code was not compared with the program: {unable}")


def _compare(of: WrittenNetwork, trains: bool) -> str:
    """Compare both; return the reason if something could not be compared, empty otherwise."""
    sizes = [*_sizes(of.program, of.feeds)]
    if not sizes:
        return "no sizes of its inputs were found"
    is_large = _is_large(of, sizes[-1])
    unable = _compare_mode(of, sizes[: 1 if is_large else None], False)
    if unable or is_large or not trains:
        return unable
    still, changed = _STILL(of.program)
    if changed:
        module, source = of.write(still, of.fetches)
        of = of._replace(program=still, module=module, source=source)
    return _compare_mode(of, sizes, True)


def _compare_mode(of: WrittenNetwork, sizes: Sequence[Sizes], training: bool) -> str:
    steps = NetworkSteps(of.program, list(of.feeds), list(of.fetches))
    drawn = _drawn(steps.of(training))
    differentiated = training and drawn.isdisjoint(of.fetches) and not any(lacks_gradient(op.type) for op in of.program.all_ops())
    for at, each in enumerate(sizes):
        told = ""
        for fill in (None, 1, 0):
            given = _inputs(of, each, at, fill)
            reference = _network(of, steps).train(training)
            held = reference.by_name()
            _put(of.module.train(training), {key: held[name] for key, name in of.source.keys.items() if name in held})
            try:
                wanted = _run(reference, held, of.fetches, [given[name] for name in of.feeds], differentiated)
            except _REFUSALS as error:  # numbers out of an operator's range were drawn, or it has no backward pass
                told = told or f"the program refuses the inputs drawn for it: {(str(error).strip() or type(error).__name__).splitlines()[0][:300]}"
                continue
            told = ""
            _compare_run(of, steps, training, given, wanted, drawn, each)
            break
        if told:
            return told
    return ""


def _compare_run(of: WrittenNetwork, steps: NetworkSteps, training: bool, given: Values, wanted: _RunValues, drawn: set[str], sizes: Sizes) -> None:
    """Refuse a module with other numbers than the program's."""
    where = f"in {'train' if training else 'eval'}() with {', '.join(f'{n} {[*dims]}' for n, dims in sizes.items()) or 'no inputs'}"
    try:
        seen = _run(of.module, _by_name(of), of.fetches, _arguments(of, given), bool(wanted.gradients))
    except _REFUSALS as error:
        words = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise FormatError(f"the torch code fails {where}, and the program does not: {refused_op(error, of.module, of.program)}{words}") from error
    apart = {name: one for name, one in _differences(wanted, seen, drawn).items() if one.words}
    if not apart:
        return
    shaken = _shaken(of, steps, training, given, wanted)
    apart = {name: one for name, one in apart.items() if not one.size <= _AMPLIFIED * shaken.get(name, 0.0)}
    if apart:
        name, (_, words) = next(iter(apart.items()))
        op = _first_apart(of, training, given) if name in wanted.results else None
        by = "" if op is None else f"; the first op that differs is {op.type}{f' at {site.short()}' if (site := op.call_site) is not None else ''}"
        raise FormatError(f"the torch code gives other numbers than the program {where}: {words}{by}")


def _run(net: Any, held: Values, fetches: Sequence[str], inputs: Sequence[Any], differentiated: bool) -> _RunValues:
    """Run a network of either form.

    Args:
        held: its parameters and buffers, by their names in the program.
    """
    net.zero_grad()
    with torch.set_grad_enabled(differentiated):
        found = net(*inputs)
        parts = [_flat(part) for part in (found if len(fetches) > 1 else (found,))]
        results = {f"{name}{f' ({k})' * (k > 0)}": value for name, values in zip(fetches, parts, strict=True) for k, value in enumerate(values)}
        numbers = [v for v in results.values() if isinstance(v, torch.Tensor) and v.is_floating_point() and v.requires_grad]
        if numbers:
            torch.manual_seed(0)
            torch.stack([(v * (torch.rand(v.shape).to(v) - 0.25)).sum().double() for v in numbers]).sum().backward()  # torch loads sympy for given gradients
    gradients = {n: g.to_dense() if g.layout is not torch.strided else g for n, t in held.items() if (g := t.grad) is not None}
    changed = {n: t for n, t in held.items() if not isinstance(t, torch.nn.Parameter)}
    return _RunValues({n: v.detach() if isinstance(v, torch.Tensor) else v for n, v in results.items()}, gradients, changed)


def _by_name(of: WrittenNetwork) -> Values:
    """Return the parameters and buffers of a written module by their names in the program."""
    own = {**dict(of.module.named_parameters(remove_duplicate=False)), **dict(of.module.named_buffers(remove_duplicate=False))}
    return {name: own[key] for key, name in of.source.keys.items()}


def _differences(wanted: _RunValues, seen: _RunValues, drawn: set[str]) -> dict[str, _ValueDifference]:
    """Return the difference of each value."""
    told: dict[str, _ValueDifference] = {}
    largest = max([float(g.abs().max()) for g in wanted.gradients.values() if g.numel()], default=0.0)
    for kind, ours, theirs in (("", wanted.results, seen.results), ("the gradient of ", wanted.gradients, seen.gradients), ("", wanted.changed, seen.changed)):
        for name, a in ours.items():
            if name not in theirs and kind == "":
                continue
            b = theirs.get(name)
            b = torch.zeros_like(a) if b is None else b
            size, words = _difference(a, b, _LEAST * largest if kind else 0.0, name.partition(" ")[0] in drawn)
            told.setdefault(f"{kind}{name}", _ValueDifference(size, words and f"{kind}{name} {words}"))
    return told


def _difference(a: Any, b: Any, least: float, shape_alone: bool) -> _ValueDifference:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return _ValueDifference(0.0) if a == b else _ValueDifference(float("inf"), f"is {a} in the program, and {b} in torch code")
    if a.dtype is not b.dtype or a.shape != b.shape:
        return _ValueDifference(float("inf"), f"is {a.dtype}{[*a.shape]} in the program, and {b.dtype}{[*b.shape]} in torch code".replace("torch.", ""))
    if shape_alone or not a.numel():
        return _ValueDifference(0.0)
    room = _ROOM.get(a.element_size() if a.is_floating_point() else 0, 1e-3)
    wide = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.detach().to(wide), b.detach().to(wide)
    finite = x.isfinite()
    if not torch.equal(finite, y.isfinite()) or not torch.equal(x[~finite].nan_to_num(), y[~finite].nan_to_num()):
        return _ValueDifference(float("inf"), "has other infinities or NaN in torch code")
    top = float(x[finite].abs().max()) if bool(finite.any()) else 0.0
    difference = float((x - y)[finite].abs().max()) / max(top, least, 1e-6) if bool(finite.any()) else 0.0
    return _ValueDifference(difference, f"differs by {difference:.1e} of its largest number" if difference > room else "")


def _shaken(of: WrittenNetwork, steps: NetworkSteps, training: bool, given: Values, wanted: _RunValues) -> dict[str, float]:
    """Return how far the program's own numbers move where inputs and parameters change in their last digits: name -> part of the largest number."""
    moved: dict[str, float] = {}
    for seed in range(3):
        torch.manual_seed(seed)
        inputs = {n: (_nudged(v[0]), v[1]) if v.__class__ is tuple else _nudged(v) for n, v in given.items()}
        other = _network(of, steps, _nudged).train(training)
        try:
            found = _run(other, other.by_name(), of.fetches, [inputs[n] for n in of.feeds], bool(wanted.gradients))
        except _REFUSALS:
            continue
        for name, one in _differences(wanted, found, set()).items():
            moved[name] = max(moved.get(name, 0.0), one.size)
    return moved


def _nudged(value: Any) -> Any:
    return value * (1 + _NUDGE * torch.randn(value.shape).to(value)) if value.is_floating_point() else value


def _first_apart(of: WrittenNetwork, training: bool, given: Values) -> Op | None:
    """Return the first op of the program with other results in torch code; None if it cannot be told."""
    steps = NetworkSteps(of.program, list(of.feeds), list(of.fetches))
    program = steps.of(training)
    block = program.global_block
    makers = {n: op for op in block.ops if op.is_run for n in op.output_names() if not is_empty_name(n)}
    read = {*of.fetches, *(n for op in block.ops for n in op.all_reads())}
    once = [n for n in makers if n in read and (v := block.vars.get(n)) is not None and v.kind is LOD_TENSOR and not v.persistable]
    try:
        module, source = of.write(program, once)
        all_of = of._replace(program=program, fetches=once, module=module, source=source)
        reference = _network(all_of, NetworkSteps(program, list(of.feeds), once)).train(training)
        wanted = _run(reference, reference.by_name(), once, [given[n] for n in of.feeds], False)
        seen = _run(module.train(training), _by_name(all_of), once, _arguments(of, given), False)
    except _REFUSALS:  # a value on the way has no form as a result
        return None
    apart = _differences(wanted, seen, _drawn(program))
    return next((makers[n] for n in once if n in apart and apart[n].words), None)


def _network(of: WrittenNetwork, steps: NetworkSteps, parameter: Callable[[Any], Any] = lambda value: value) -> Any:
    """Return the program as a module of torch over a scope of its own: parameters in the same memory, and copies of all else."""
    scope = Scope()
    for name in steps.held():
        value = of.scope.tensor(name)
        variable = steps.program.global_block.vars[name]
        scope.share(name, parameter(value) if variable.is_parameter and variable.trainable else value.clone())
    return TorchNetwork(steps, scope, None, {})


def _inputs(of: WrittenNetwork, sizes: Sizes, seed: int, fill: int | None) -> Values:
    """Return drawn inputs by name, ragged ones as rows and offsets. Whole numbers are 0 and 1, or ``fill``; at the second sizes all numbers are positive."""
    device = next((t.device for t in of.module.state_dict().values()), torch.device("cpu"))
    drawn = iter(inputs_of(of.program, of.feeds, sizes, seed))
    variables = of.program.global_block.vars
    given: Values = {}
    offsets: Values = {}
    for name in of.feeds:
        value, lod = next(drawn), variables[name].spec.lod
        if value.is_floating_point():
            value = value.sigmoid() if seed else value
        elif fill is not None:
            value = torch.full_like(value, fill)
        if lod is not None and lod.source not in offsets:
            offsets[lod.source] = next(drawn)
        given[name] = value.to(device) if lod is None else (value.to(device), offsets[lod.source])
    return given


def _arguments(of: WrittenNetwork, given: Values) -> list[Any]:
    """Return inputs as arguments of written code: the offsets of sequences once, behind their first rows."""
    out: list[Any] = []
    sources: set[str] = set()
    for name in of.feeds:
        value, lod = given[name], of.program.global_block.vars[name].spec.lod
        if lod is None:
            out.append(value.clone())
            continue
        out.append(value[0].clone())
        if lod.source not in sources:
            sources.add(lod.source)
            out.append(value[1])
    return out


def _sizes(program: Program, feeds: Sequence[str]) -> Iterator[dict[str, list[int]]]:
    """Yield the smallest sizes of the inputs, and other small ones, of which each is wished to be another."""
    known = program.feeds
    smallest = known.smallest
    if smallest is None:
        return
    yield {name: smallest[name] for name in feeds}
    chosen: dict[str, int] = {}
    small = iter(_SMALL)
    wished: dict[str, list[int]] = {}
    for name in feeds:
        for dim in known[name].dims or ():
            if not isinstance(dim, int) and str(dim) not in chosen:
                chosen[str(dim)] = next(small, _SMALL[-1])
        wished[name] = [dim if isinstance(dim, int) else chosen[str(dim)] for dim in known[name].dims or ()]
    near = known.nearest(wished) if wished else None
    if near is not None and any(near[name] != smallest[name] for name in feeds):
        yield {name: near[name] for name in feeds}


def _is_large(of: WrittenNetwork, sizes: Sizes) -> bool:
    values: dict[str, int] = {}
    for name in of.feeds:
        for dim, n in zip(of.program.global_block.vars[name].spec.known_dims, sizes[name], strict=True):
            symbol, per = ("", 1) if isinstance(dim, int) else one_symbol(dim)
            if symbol:
                values[symbol] = n // per
    numbers = sum(t.numel() for t in of.module.parameters())
    return numbers > MOST_NUMBERS or work_of_all(lower(of.program.global_block, list(of.fetches)), values) > MOST_WORK


@named("still")
def _STILL(program: Program) -> bool:
    """Switch dropout off; one that drops nothing or all draws no numbers already."""
    changed = False
    for op in program.all_ops():
        entries = tuple([(n, t, 0.0 if t is AttrType.FLOAT and "dropout" in n and 0.0 < v < 1.0 else v) for n, t, v in op.attributes.entries])
        if entries != op.attributes.entries:
            op.attributes, changed = Attributes.of(op.type, entries), True
    return changed


def _drawn(program: Program) -> set[str]:
    """Return the values behind random numbers."""
    found: set[str] = set()
    before = -1
    while before != len(found):  # the rounds of a loop
        before = len(found)
        for op in program.all_ops():
            chance = op.attributes.values.get("dropout_prob")
            draws = op.operator is not None and op.operator.draws() and not (isinstance(chance, float) and chance in (0.0, 1.0))
            if draws or not found.isdisjoint(op.all_reads()):
                found.update(op.all_writes())
    return found


def _put(module: Any, values: Mapping[str, Any]) -> None:
    """Put values into a module's buffers."""
    with torch.no_grad():
        for key, held in module.named_buffers(remove_duplicate=False):
            if key in values:
                held.copy_(values[key])


def _flat(results: Any) -> list[Any]:
    return [one for part in results for one in _flat(part)] if is_list(results) else [results]
