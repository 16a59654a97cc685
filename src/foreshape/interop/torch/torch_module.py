"""`TorchNetwork`: a program as a module of torch, with gradients by this framework's own backward pass."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from foreshape.core.values.torch_private import private
from foreshape.errors import ExecutionError, FeedError
from foreshape.interop.torch.forward_pass import ONCE, ForwardPass, torch_value
from foreshape.interop.torch.module_values import ModuleValues, place_values
from foreshape.interop.torch.nesting import Nesting
from foreshape.interop.torch.network_operator import OperatorNetwork, network
from foreshape.interop.torch.network_steps import NetworkSteps, executor_on
from foreshape.interop.torch.untyped_torch import is_list, torch
from foreshape.machine.process import torch_modes as modes
from foreshape.runtime.engine import LoDTensor, Scope

_Module: Any = torch.nn.Module
_FORWARD_AD: Any = importlib.import_module("torch.autograd.forward_ad")


class TorchNetwork(_Module):
    """A program as a module of torch. Made by `to_torch`.

    Parameters and buffers have their names in the program, parts between dots as modules, and share their memory with the scope that the module was made
    of. In ``train()`` the program runs as it is, in ``eval()`` as for a test. Random operators draw from torch's own generator. Inputs come in order or by
    name; a ragged one as a jagged tensor, a pair ``(values, offsets)`` or a `LoDTensor`. Ragged results come as jagged tensors if an input was one,
    otherwise as pairs.
    """

    def __init__(self, steps: NetworkSteps, scope: Scope, nesting: Nesting | None, names: Mapping[str, str]) -> None:
        _Module.__init__(self)
        self._steps = steps
        self._nesting = nesting
        self._values = ModuleValues()
        place_values(self, steps, scope, names)
        self._operator = OperatorNetwork(steps)

    @property
    def scope(self) -> Scope:
        """The values of parameters and buffers as a scope, in the same memory: for executors, plans and files."""
        return self._values.scope_of(self, self._steps)[0]

    def by_name(self) -> dict[str, Any]:
        """Return the parameters and buffers by their names in the program, which are other ones than the module's where torch does not take them."""
        held = self._values.scope_of(self, self._steps)[1]
        return dict(zip(self._values.names, held, strict=True))

    @property
    def program(self) -> Any:
        """The program in the present mode."""
        return self._steps.of(self.training)

    def extra_repr(self) -> str:
        """Return the inputs and results, for torch's own text of a module."""
        block = self._steps.program.global_block
        return f"{', '.join(str(block.var(n)) for n in self._steps.feeds)} -> {', '.join(str(block.var(n)) for n in self._steps.results)}"

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the results: one tensor, or several in order; of a network from a module of torch, in that module's nesting.

        Raises:
            FeedError, GuardError: the network does not take these inputs. ExecutionError: a kernel fails.
        """
        if torch.compiler.is_compiling():
            return self._traced(inputs, named)
        if modes.is_set():
            with modes.left_out(None):
                return self._forward(inputs, named)
        return self._forward(inputs, named)

    def _forward(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        steps = self._steps
        given = self._named(inputs, named)
        scope, held = self._values.scope_of(self, steps)
        device = held[0].device if held else torch.device("cpu")
        tensors: dict[str, Any] = {}
        feed: dict[str, Any] = {}
        jagged: Any = None
        block = steps.program.global_block
        for name, value in given.items():
            of = block.vars[name].spec
            if of.lod is not None:
                jagged = value if getattr(value, "is_nested", False) else jagged
                tensors[name], feed[name] = _ragged(name, value, of.lod_level)
            else:
                feed[name] = tensors[name] = value
            if isinstance(tensors[name], torch.Tensor) and tensors[name].device != device:
                raise FeedError(f"{name} is on {tensors[name].device}, and the parameters of the network are on {device}: move one of them")
        if getattr(_FORWARD_AD, "_current_level", -1) >= 0:
            _refuse_tangents({**tensors, **dict(self.named_parameters())})
        wanted: list[Any] = []
        names: tuple[str, ...] = ()
        own = 0
        if torch.is_grad_enabled():
            wanted, names = self._values.wanted(held)
            inputs = [n for n, t in tensors.items() if isinstance(t, torch.Tensor) and t.requires_grad]
            wanted, names, own = [*wanted, *(tensors[n] for n in inputs)], (*names, *inputs), len(inputs)
        executor = executor_on(str(device))
        step = steps.step(self.training, names, str(device))
        fed, signature = executor.take(step.step, feed)
        bound, planned = executor.ready(step.step, fed, signature, scope)
        run = ForwardPass(executor, step, scope, bound, planned, fed)
        run.inputs = [t.shape for t in wanted[len(wanted) - own :]]
        found = _Halves.apply(run, *wanted) if wanted else run.forward()[0]
        self._values.take_stored(self, scope)
        results = [self._result(name, at, found, run, jagged) for at, name in enumerate(steps.results)]
        if self._nesting is None:
            return results[0] if len(results) == 1 else tuple(results)
        return self._nesting.filled(results)

    def _traced(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return the results of the operator `network`, for a trace."""
        given = self._named(inputs, named)
        of = self._operator
        values = {**dict(self.named_parameters(remove_duplicate=False)), **dict(self.named_buffers(remove_duplicate=False))}
        tensors = [values[n] for n in of.names]
        places = [at for at, t in enumerate(tensors) if t.requires_grad]
        jagged: Any = None
        for name, levels in zip(self._steps.feeds, of.levels, strict=True):
            value: Any = given[name]
            rows: Any
            offsets: Any
            if levels and getattr(value, "is_nested", False):
                jagged = value
                value = value.values(), value.offsets()
            rows, offsets = value if levels else (value, ())
            if rows.requires_grad:
                places.append(len(tensors))
            tensors += [rows, *(offsets if is_list(offsets) else [offsets])]
        found = network(tensors, self._steps.key, self.training, places if torch.is_grad_enabled() else [])
        results: list[Any] = []
        rest = iter(found[len(of.result_levels) :])
        for value, levels, size in zip(found, of.result_levels, of.result_sizes, strict=False):
            offsets = [next(rest) for _ in range(levels)]
            if levels == 1 and jagged is not None:
                results.append(torch.nested.nested_tensor_from_jagged(value, offsets[0]))
            elif levels:
                results.append((value, offsets[0] if levels == 1 else offsets))
            elif size is not None and self._nesting is not None:
                feed, axis, per, factor = size
                results.append(given[self._steps.feeds[feed]].shape[axis] // per * factor)
            else:
                results.append(value)
        if self.training:
            for name in of.changed:
                values[name].copy_(next(rest).detach())
        if self._nesting is None:
            return results[0] if len(results) == 1 else tuple(results)
        return self._nesting.filled(results)

    def _named(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs by name."""
        feeds = self._steps.feeds
        if self._nesting is not None:
            inputs = self._nesting.leaves(inputs)[0]
        elif len(inputs) == 1 and not named and isinstance(inputs[0], Mapping):
            inputs, named = (), cast("Mapping[str, Any]", inputs[0])
        if len(inputs) > len(feeds) or not named.keys() <= set(feeds[len(inputs) :]) or len(inputs) + len(named) != len(feeds):
            seen = ", ".join([f"{len(inputs)} in order", *(f"{n}=" for n in named)])
            raise FeedError(f"the network has the inputs {', '.join(feeds)}: give each of them once, in this order or by name; seen {seen}")
        return {**dict(zip(feeds, inputs, strict=False)), **named}

    def _result(self, name: str, at: int, found: Sequence[Any], run: ForwardPass, jagged: Any) -> Any:
        value = found[at]
        refused = run.step.refused.get(name)
        if refused is not None and torch.is_grad_enabled():
            value = private.DelayedError(str(refused), 1)(value.detach().requires_grad_())
        of = run.step.step.halves.front.fetches[at]
        if of.lod is None:
            return value
        levels = run.offsets[at].levels
        if jagged is not None and len(levels) == 1:
            return torch.nested.nested_tensor_from_jagged(value, jagged.offsets() if torch.equal(levels[0], jagged.offsets()) else levels[0])
        return value, levels[0] if len(levels) == 1 else list(levels)


class _Halves(torch.autograd.Function):
    """A step in torch's graph of gradients."""

    @staticmethod
    def forward(ctx: Any, run: ForwardPass, *wanted: Any) -> Any:
        """Run the first half; keep what it hands on."""
        step = run.step
        results, handed = run.forward()
        ctx.set_materialize_grads(False)
        names = [v.name for v in step.step.halves.front.fetches]
        fixed = [v for at, v in enumerate(results) if isinstance(v, torch.Tensor) and at not in step.fed]
        ctx.mark_non_differentiable(*fixed)
        run.shapes = [(v.shape, v.dtype, v.device) if isinstance(v, torch.Tensor) else None for v in results]
        for at, result in step.step.halves.given:  # an own alias, as a tensor of the graph would keep itself alive
            handed[at] = results[result].detach()
        places = step.step.halves.outside  # their changes are noticed
        if private.saved_hooks(False) is not None:
            places = [at for at, v in enumerate(handed) if _can_be_saved(v)]
        ctx.save_for_backward(*[handed[at] for at in places], *run.read_later())
        for at in places:
            handed[at] = None
        ctx.run, ctx.names, ctx.places, ctx.kept, ctx.wanted = run, names, places, handed, wanted
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Run the second half."""
        run: ForwardPass = ctx.run
        step, saved = run.step, ctx.saved_tensors  # torch refuses changed ones, parameters among them
        again = bool(private.keeps_graph())
        if ctx.kept is None:
            raise ExecutionError("backward a second time through one run of a network: what its first half kept is freed. Give the first one retain_graph=True")
        handed = [*ctx.kept]
        wanted = ctx.wanted
        if not again:
            ctx.kept = ctx.wanted = None
        for at, value in zip(ctx.places, saved, strict=False):
            handed[at] = value
        del saved
        found = run.backward(gradients, handed, again)
        reached = {n for at, g in enumerate(gradients) if g is not None for n in step.reach.get(ctx.names[at], ())}
        out = [None if at is None or n not in reached else torch_value(found[at]) for n, at in zip(step.wanted, step.gradients, strict=True)]
        first = len(out) - len(run.inputs)
        out[first:] = [g if g is None or g.is_sparse else g.reshape(of) for g, of in zip(out[first:], run.inputs, strict=True)]
        if torch.is_grad_enabled():
            made = iter(_Once.apply(sum(g is not None for g in out), *(g for g in out if g is not None), *wanted))
            out = [None if g is None else next(made) for g in out]
        return None, *out


class _Once(torch.autograd.Function):
    """Gradients in torch's graph, so that their own gradient is refused and not taken for zero."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: Any) -> Any:
        """Return the first ones, the gradients."""
        return tuple([t.detach() for t in tensors[:count]])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Refuse."""
        raise RuntimeError(ONCE)


def _refuse_tangents(tensors: Mapping[str, Any]) -> None:
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and _FORWARD_AD.unpack_dual(tensor).tangent is not None:
            raise ExecutionError(f"{name} has a tangent of forward-mode differentiation, and the network has gradients by backward passes alone")


def _can_be_saved(value: Any) -> bool:
    """Tell whether torch's graph keeps a value as it is: no constant made in inference mode, and nothing that only kernels understand."""
    return value is None or (type(value) is torch.Tensor and not vars(value) and not value.is_inference())


def _ragged(name: str, value: Any, levels: int) -> tuple[Any, Any]:
    """Return the rows of a ragged input, and it as a feed."""
    if getattr(value, "is_nested", False):
        return (value.values() if value.layout is torch.jagged and value.lengths() is None else None), value
    pair: Sequence[Any] = value if value.__class__ is tuple else ()
    if len(pair) == 2 and isinstance(pair[0], torch.Tensor):
        rows, given = pair
        of: Sequence[Any] = given if is_list(given) else [given]
        if len(of) != levels:
            raise FeedError(f"{name} has {levels} level{'s' * (levels != 1)} of sequences; given are the offsets of {len(of)}")
        return rows, LoDTensor.from_offsets(rows.detach(), [o.cpu().numpy() if isinstance(o, torch.Tensor) else o for o in of])
    return None, value
