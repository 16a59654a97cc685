"""`foreshape::network`: a network as an operator of torch, for traces by torch.compile and torch.export.

A run without a trace is a function of autograd (`torch_module`), and takes half the time of an operator's way through torch's dispatcher. The operator is
functional: new values of buffers are results. A token, kept by torch for the backward pass, stands for the values handed to the second half.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import reduce
from itertools import count
from math import prod
from typing import Any, Final
from weakref import finalize

from foreshape.core.dims import Dim, Size, symbols_of
from foreshape.core.dims.expression import Atom
from foreshape.core.spec import LOD_TENSOR
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_types import torch_dtype
from foreshape.errors import ExecutionError, FeedError, SchemaError
from foreshape.interop.torch.forward_pass import ONCE, ForwardPass, torch_value
from foreshape.interop.torch.module_values import alias
from foreshape.interop.torch.network_steps import NetworkStep, NetworkSteps, executor_on, known_network
from foreshape.interop.torch.untyped_torch import own_operators, torch
from foreshape.interop.torch.write.numbers_code import one_symbol
from foreshape.language.program import Variable
from foreshape.machine.process import torch_modes as modes
from foreshape.runtime.engine import LoDTensor, Scope

_SCOPES: Final = 2
"""So many sets of parameters at most are kept bound, of one network."""
_PASSES: Final[dict[int, tuple[ForwardPass, list[Any]]]] = {}
"""By a token's number: the pass before its gradients are asked for. It goes with the token's memory, whose copies torch may hold."""
_NUMBERS: Final = count(1)
_NETWORKS: Final[dict[str, OperatorNetwork]] = {}
"""The networks of graphs of torch, by their key in a graph."""


class OperatorNetwork:
    """A network as it runs in the operator."""

    def __init__(self, steps: NetworkSteps) -> None:
        self.steps = steps
        self.names = steps.held()
        block = steps.program.global_block
        self.levels = [0 if (lod := block.vars[n].spec.lod) is None else len(lod.counts) for n in steps.feeds]
        """The levels of sequences of each input."""
        self.result_levels = [0 if (lod := block.vars[n].spec.lod) is None else len(lod.counts) for n in steps.results]
        self.result_sizes = [self._as_an_axis(block.var(n)) for n in steps.results]
        """For each result: the input, the axis, the divisor and the factor, where it is a size of an input; otherwise None."""
        written = {n for op in steps.program.all_ops() for n in op.output_names()}
        self.changed = [n for n in self.names if n in written]
        """The buffers written by a run in training."""
        self._scopes: OrderedDict[Any, Scope] = OrderedDict()

    def _as_an_axis(self, result: Variable) -> tuple[int, int, int, int] | None:
        value = result.spec.value
        if value is None or len(value) != 1 or not isinstance(size := value[0], Dim):
            return None
        name, factor = one_symbol(size)
        block = self.steps.program.global_block
        for at, feed in enumerate(self.steps.feeds):
            for axis, dim in enumerate(block.vars[feed].spec.known_dims):
                if isinstance(dim, Dim) and name and one_symbol(dim)[0] == name:
                    return at, axis, one_symbol(dim)[1], factor
        return None

    def step(self, training: bool, wanted: Sequence[int], device: str) -> NetworkStep:
        """Return the compiled halves for gradients of some of the operator's tensors."""
        listed = [*self.names]
        for name, levels in zip(self.steps.feeds, self.levels, strict=True):
            listed += [name] * (1 + levels)
        return self.steps.step(training, tuple([listed[at] for at in wanted]), device)

    def forward(self, tensors: Sequence[Any], training: bool, wanted: Sequence[int]) -> list[Any]:
        """Return the results, the offsets of ragged ones, the new values of buffers, and the token."""
        held = tensors[: len(self.names)]
        device = tensors[0].device if tensors else torch.device("cpu")
        other = next((t for t in tensors[len(held) :] if t.device != device and not any(self.levels)), None)
        if other is not None:
            raise FeedError(f"an input is on {other.device}, and the parameters of the network are on {device}: move one of them")
        scope = self._scope_of(held)
        changed = self.changed if training else []
        for name, value in zip(self.names, held, strict=True):
            if name in changed:
                scope.tensor(name).copy_(value)
        feed: dict[str, Any] = {}
        rest = iter(tensors[len(held) :])
        for name, levels in zip(self.steps.feeds, self.levels, strict=True):
            feed[name] = next(rest)
            if levels:
                feed[name] = LoDTensor.from_offsets(feed[name], [next(rest).cpu().numpy() for _ in range(levels)])
        executor = executor_on(str(device))
        step = self.step(training, wanted, str(device))
        fed, signature = executor.take(step.step, feed)
        bound, planned = executor.ready(step.step, fed, signature, scope)
        run = ForwardPass(executor, step, scope, bound, planned, fed)
        results, handed = run.forward()
        run.shapes = [(v.shape, v.dtype, v.device) for v in results]
        out = [v.contiguous() for v in results]
        for at in range(len(results)):
            out += run.offsets[at].levels if at in run.offsets else ()
        out += [scope.tensor(n).clone() for n in changed]
        token = torch.tensor(next(_NUMBERS))
        outside = _outside(step, self.steps.feeds)
        for at, (is_result, place) in outside.items():  # torch keeps these, and may write to their memory where nobody else needs it
            of = results[place] if is_result else feed[self.steps.feeds[place]]
            if isinstance(of, torch.Tensor) and isinstance(handed[at], torch.Tensor) and of.data_ptr() == handed[at].data_ptr():
                handed[at] = _Kept(handed[at].shape)
        if wanted:
            _PASSES[int(token)] = run, handed
            finalize(token.untyped_storage(), _PASSES.pop, int(token), None).atexit = False
        return [*out, token]

    def backward(self, gradients: Sequence[Any], token: Any, tensors: Sequence[Any], kept: Sequence[Any]) -> list[Any]:
        """Return the gradients of the wanted tensors."""
        again = bool(private.keeps_graph())
        found = _PASSES.get(int(token)) if again else _PASSES.pop(int(token), None)
        if found is None:
            raise ExecutionError("backward a second time through one run of a network: what its first half kept is freed. Give the first one retain_graph=True")
        run, handed = found[0], [*found[1]]
        values = iter(kept)
        for at in _outside(run.step, self.steps.feeds):
            value = next(values)
            if isinstance(handed[at], _Kept):
                handed[at] = value.detach().reshape(handed[at])
        found = run.backward(gradients, handed, again)
        out: list[Any] = []
        for at, tensor in zip(run.step.gradients, tensors, strict=True):
            value = torch.zeros_like(tensor) if at is None else _dense(found[at]).reshape(tensor.shape).contiguous()
            out.append(value.clone() if any(value is o for o in out) else value)
        return out

    def _scope_of(self, held: Sequence[Any]) -> Scope:
        """Return a scope of the given parameters, in their memory, with buffers of its own."""
        key = tuple([(t.data_ptr(), t.shape, t.stride(), t.dtype) for n, t in zip(self.names, held, strict=True) if n not in self.changed])
        scope = self._scopes.get(key)
        if scope is None:
            scope = self._scopes[key] = Scope()
            for name, tensor in zip(self.names, held, strict=True):
                scope.share(name, alias(tensor.detach().clone() if name in self.changed else tensor))
            if len(self._scopes) > _SCOPES:
                self._scopes.popitem(last=False)
        self._scopes.move_to_end(key)
        return scope

    # --- shapes before a run

    def results(self, training: bool) -> list[Variable]:
        """Return the variables of the results. Raises `SchemaError` for others than tensors."""
        block = self.steps.of(training).global_block
        found = [block.var(n) for n in self.steps.results]
        for v in found:
            if v.spec.kind is not LOD_TENSOR or v.spec.dims is None:
                raise SchemaError(f"{v}: torch traces results that are tensors of known rank")
        return found

    def fake(self, tensors: Sequence[Any], training: bool) -> list[Any]:
        """Return empty tensors as the results: of known sizes, or dependent on the numbers."""
        _NETWORKS.setdefault(self.steps.key, self)
        given = tensors[len(self.names) :]
        named: dict[str, Any] = {}
        at = 0
        block = self.steps.program.global_block
        for name, levels in zip(self.steps.feeds, self.levels, strict=True):
            spec = block.vars[name].spec
            rows, offsets = given[at], given[at + 1 : at + 1 + levels]
            at += 1 + levels
            if len(spec.known_dims) == rows.dim():
                _solve(spec.known_dims, rows.shape, named)
            if spec.lod is not None:
                _solve(spec.lod.counts, [o.shape[0] - 1 for o in offsets], named)
        device = tensors[0].device if tensors else "cpu"
        results = self.results(training)
        out = [torch.empty([_sized(d, named) for d in v.spec.known_dims], dtype=torch_dtype(v.spec.known_dtype), device=device) for v in results]
        for v in results:
            out += [torch.empty([_sized(n, named) + 1], dtype=torch.int64, device=device) for n in (v.spec.lod.counts if v.spec.lod is not None else ())]
        for name in self.changed if training else ():
            out.append(torch.empty_like(tensors[self.names.index(name)]))
        return [*out, torch.empty((), dtype=torch.int64)]


class _Kept(tuple[int, ...]):
    """The shape of a value kept by torch."""


def _dense(value: Any) -> Any:
    value = torch_value(value)
    return value.to_dense() if value.is_sparse else value


def _outside(step: NetworkStep, feeds: Sequence[str]) -> dict[int, tuple[bool, int]]:
    """Return the places of inputs and results among handed values: each with whether it is a result, and its place."""
    halves = step.step.halves
    given = dict(halves.given)
    names = [v.name for v in halves.back.taken]
    return {at: (True, given[at]) if at in given else (False, feeds.index(names[at])) for at in halves.outside}


def _solve(dims: Sequence[Size], sizes: Sequence[Any], named: dict[str, Any]) -> None:
    for dim, size in zip(dims, sizes, strict=True):
        if not isinstance(dim, int):
            name, per = one_symbol(dim)
            if name:
                named.setdefault(name, size if per == 1 else size // per)


def _sized(size: Size, named: dict[str, Any]) -> Any:
    """Return a size, in torch's symbols; a new one where the numbers decide."""
    if isinstance(size, int):
        return size
    symbols = [*symbols_of(size)]
    if all(n in named for n in symbols):
        return _value(size, named)
    made = own_operators().get_ctx().new_dynamic_size()
    if [str(size)] == symbols:
        named[symbols[0]] = made
    return made


def _value(size: Size, named: dict[str, Any]) -> Any:
    """Return a size with these values of its symbols."""
    if not isinstance(size, Dim):
        return int(size)
    return sum((prod((_atom(atom, named) for atom in atoms), start=factor) for atoms, factor in size.terms), 0)


def _atom(atom: Atom, named: dict[str, Any]) -> Any:
    if not atom.op:
        return named[atom.name]
    args = [_value(a, named) for a in atom.args]
    if atom.op in ("//", "%"):
        return args[0] // args[1] if atom.op == "//" else args[0] % args[1]
    return reduce(torch.sym_min if atom.op == "min" else torch.sym_max, args)  # of broadcast sizes one is 1, or they are equal


def network_of(key: str) -> OperatorNetwork:
    """Return a network by its key. Raises `ExecutionError` where it is not here."""
    found = _NETWORKS.get(key)
    if found is None:
        steps = known_network(key)
        if steps is None:
            raise ExecutionError(
                f"the network {key} of this graph is not in this process: make it by fs.to_torch before, or write one of torch's own operators with plain=True"
            )
        found = OperatorNetwork(steps)
    return found


def _setup(ctx: Any, inputs: Any, output: Sequence[Any]) -> None:
    tensors, key, training, wanted = inputs
    network = network_of(key)
    step = network.step(training, wanted, str(tensors[0].device) if tensors else "cpu")
    starts = [len(network.names)]
    for levels in network.levels:
        starts.append(starts[-1] + 1 + levels)
    kept = [output[place] if is_result else tensors[starts[place]] for is_result, place in _outside(step, network.steps.feeds).values()]
    kept += [t for n, t in zip(network.names, tensors, strict=False) if n not in network.changed]  # torch notices their changes
    ctx.save_for_backward(output[-1], *(tensors[at] for at in wanted), *kept)
    ctx.count, ctx.key, ctx.wanted, ctx.refused = len(tensors), key, wanted, [step.refused.get(n) for n in network.steps.results]


def _backward(ctx: Any, gradients: Sequence[Any]) -> Any:
    token, *saved = ctx.saved_tensors
    tensors, kept = saved[: len(ctx.wanted)], saved[len(ctx.wanted) :]
    of_results = [*gradients[: len(ctx.refused)]]
    for gradient, refused in zip(of_results, ctx.refused, strict=True):
        if refused is not None and gradient is not None:
            raise refused
    found = dict(zip(ctx.wanted, torch.ops.foreshape.network_backward(of_results, token, tensors, kept, ctx.key), strict=True))
    return [found.get(at) for at in range(ctx.count)], None, None, None


def _run(tensors: Sequence[Any], key: str, training: bool, wanted: Sequence[int]) -> list[Any]:
    network = network_of(key)
    with modes.left_out(None):
        return network.forward(tensors, training, wanted)


def _run_back(gradients: Sequence[Any], token: Any, tensors: Sequence[Any], kept: Sequence[Any], key: str) -> list[Any]:
    with modes.left_out(None):
        return network_of(key).backward(gradients, token, tensors, kept)


def _fake(tensors: Sequence[Any], key: str, training: bool, wanted: Sequence[int]) -> list[Any]:
    return network_of(key).fake(tensors, training)


def _fake_back(gradients: Sequence[Any], token: Any, tensors: Sequence[Any], kept: Sequence[Any], key: str) -> list[Any]:
    return [torch.empty_like(t) for t in tensors]


def _refuse(ctx: Any, *gradients: Any) -> Any:
    raise RuntimeError(ONCE)


def _operator() -> Any:
    """Register the operator and its gradient with torch."""
    operators = own_operators()
    library = operators.Library("foreshape", "DEF")
    tags = (torch.Tag.nondeterministic_seeded,)
    library.define("network(Tensor[] tensors, str key, bool training, int[] wanted) -> Tensor[]", tags=tags)
    library.define("network_backward(Tensor?[] gradients, Tensor token, Tensor[] tensors, Tensor[] kept, str key) -> Tensor[]", tags=tags)
    functions: list[tuple[str, Any, Any]] = [("network", _run, _fake), ("network_backward", _run_back, _fake_back)]
    for name, run, fake in functions:
        library.impl(name, run, "CompositeExplicitAutograd")
        operators.register_fake(f"foreshape::{name}", fake, lib=library)
    operators.register_autograd("foreshape::network", _backward, setup_context=_setup, lib=library)
    operators.register_autograd("foreshape::network_backward", _refuse, lib=library)
    return library


LIBRARY: Final = _operator()
network: Final = torch.ops.foreshape.network
