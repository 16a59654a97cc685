"""`TorchModel`: a network of torch as a program, called as the module is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from foreshape.engine import Executor, Scope
from foreshape.errors import ExecutionError, FeedError, SchemaError
from foreshape.interop.torch.exporting import decomposed, export, flat_axes, is_exported, pytree, taken_apart
from foreshape.interop.torch.nesting import Nesting
from foreshape.interop.torch.open_size import OpenSize
from foreshape.interop.torch.torch_importer import TorchImporter
from foreshape.interop.torch.traced_guards import traced_guards
from foreshape.interop.torch.untyped_torch import torch
from foreshape.program import Program, Variable, program_guard
from foreshape.program.call_site import warn_user

_ROUNDS: Final = 5
"""So many times at most operators without a form here are taken apart by torch; a part may have parts."""


class TorchModel:
    """A network of torch as a program.

    Attributes:
        program: the network. Parameters and buffers have their names in the module, ops its paths as scopes and the user's lines.
        scope: holds the values of parameters and buffers, copies of the module's.
        feeds: the names of the inputs, in the order of torch's pytrees.
        fetches: its results, variables of the program, in this order.
        unguarded: questions about sizes in the network's own code, answered for the example alone and without a guard: other sizes may be computed wrongly.
        missing: the operators of torch without a form here, each with the paths of its modules. With any, no run begins.
    """

    def __init__(self, importer: TorchImporter, scope: Scope, out_tree: Any) -> None:
        self.program: Program = importer.program
        self.scope = scope
        self.feeds = importer.feeds
        self._results = importer.results
        self._out_tree = out_tree
        self.missing = importer.missing
        self.unguarded = importer.unguarded
        self.buffers = list(importer.changed)
        self._executor = Executor()
        self._training: tuple[Program, dict[str, str]] | None = None
        self.fetches: list[Variable] = importer.fetches

    @property
    def nesting(self) -> Nesting:
        """Return the nesting of the results."""
        kinds = [("size", None) if isinstance(v, OpenSize) else ("tensor", None) if isinstance(v, Variable) else ("value", v) for v in self._results]
        return Nesting(self._out_tree, kinds)

    def __call__(self, *inputs: Any) -> Any:
        """Return the module's results, as tensors in its own nesting.

        Raises:
            FeedError, GuardError: other inputs than the program takes. ExecutionError: the network needs operators missing here.
        """
        found = self._executor.run(self.program, self._feed(inputs), [v.name for v in self.fetches], self.scope)
        return self.nesting.filled([torch.as_tensor(value) for value in found])

    def gradients(self, *inputs: Any) -> dict[str, Any]:
        """Return parameter -> the gradient of the module's result, a scalar loss, as tensors.

        Raises:
            SchemaError: the result is not one number. FeedError, GuardError: as for a call.
        """
        if self._training is None:
            loss = self.fetches[0]
            if loss.spec.elements != 1 or not loss.spec.known_dtype.is_floating:
                raise SchemaError(f"gradients are those of one number of floats, a loss; the module gives {loss}")
            from foreshape.backward import append_backward

            program = self.program.clone()
            with program_guard(program):
                pairs = append_backward(program.global_block.var(loss.name))
            self._training = program, {parameter.name: gradient.name for parameter, gradient in pairs}
        program, names = self._training
        found = self._executor.run(program, self._feed(inputs), list(names.values()), self.scope)
        return {name: torch.as_tensor(value) for name, value in zip(names, found, strict=True)}

    def state_dict(self) -> dict[str, Any]:
        """Return the values of parameters and buffers, by their names in the module, as tensors."""
        return {name: self.scope.tensor(name).clone() for name, v in self.program.global_block.vars.items() if v.persistable and name in self.scope}

    def _feed(self, inputs: Sequence[Any]) -> dict[str, Any]:
        if self.missing:
            listed = "".join(
                f"\n    {name}: {len(paths)} in {', '.join(sorted(set(paths))[:3]) or 'the module itself'}" for name, paths in self.missing.items()
            )
            raise ExecutionError(f"the network needs operators of torch that have no form here:{listed}")
        given = Nesting.leaves(inputs)
        if len(given) != len(self.feeds):
            raise FeedError(f"the network takes the tensors {', '.join(self.feeds)}; seen {len(given)}")
        return {name: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for name, leaf in zip(self.feeds, given, strict=True)}

    def __repr__(self) -> str:
        feeds = ", ".join(str(self.program.global_block.var(n)) for n in self.feeds)
        return f"TorchModel({feeds} -> {', '.join(map(str, self.fetches))})"


def _taken_apart(exported: Any, importer: TorchImporter) -> tuple[Any, TorchImporter] | None:
    """Return the graph and its import with operators without a form here taken apart by torch, all of them or one; None where this gains nothing."""
    all_of_them = list(importer.refused)
    for targets in [all_of_them, *([one] for one in all_of_them)] if len(all_of_them) > 1 else [all_of_them] if all_of_them else []:
        graph = taken_apart(exported, targets)
        if graph is None:
            continue
        made = TorchImporter(graph, importer.axes, importer.given_guards)
        made.run()
        if not any(name.startswith("prims.") for name in made.missing):
            return graph, made
    return None


def _imported(exported: Any, guards: Any, axes: Sequence[Mapping[int, str]]) -> tuple[Any, TorchImporter]:
    """Return a graph and its import, as far apart as operators without a form here demand."""
    importer = TorchImporter(exported, axes, guards)
    importer.run()
    for _ in range(_ROUNDS):
        apart = _taken_apart(exported, importer)
        if apart is None:
            break
        exported, importer = apart
    importer.program.mark_loaded()
    return exported, importer


def _takes(importer: TorchImporter, inputs: Sequence[Any]) -> bool:
    """Tell whether the demands of the program hold for the sizes of the example."""
    tensors = [leaf for leaf in pytree().tree_flatten(tuple(inputs))[0] if isinstance(leaf, torch.Tensor)]
    sizes: dict[str, int] = {}
    for name, tensor in zip(importer.feeds, tensors, strict=True):
        for dim, n in zip(importer.program.global_block.vars[name].spec.known_dims, tensor.shape, strict=True):
            if not isinstance(dim, int):
                sizes[str(dim)] = int(n)
    return all(guard.condition.answer(sizes) is not False for guard in importer.program.guard_list() if guard.condition.symbols <= sizes.keys())


def from_torch(module: Any, example_inputs: Any = None, dynamic: Sequence[Any] | None = None) -> TorchModel:
    """Return a module of torch as a program, with its parameters and buffers.

    Args:
        module: an ``nn.Module``, in its mode (``train`` or ``eval``), or an ``ExportedProgram``.
        example_inputs: the inputs of a call, a tuple or one tensor; not for an exported program.
        dynamic: for each input None or axis -> the name of a symbol; equal names are equal sizes. By default the first axis of each tensor is ``batch``.

    Raises:
        SchemaError: torch.export refuses the module; the module changes an input.
    """
    if is_exported(module):
        exported, guards = decomposed(module, {}), traced_guards(module)
        axes: list[Mapping[int, str]] = []
        inputs: tuple[Any, ...] = ()
    else:
        inputs = tuple(example_inputs) if type(example_inputs) in (tuple, list) else (example_inputs,)
        axes = flat_axes(inputs, dynamic)
        exported, guards, _ = export(module, inputs, axes)
    exported, importer = _imported(exported, guards, axes)
    if axes and not _takes(importer, inputs):  # the code goes another way at larger sizes
        exported, guards, _ = export(module, inputs, axes, larger=(1,))
        exported, importer = _imported(exported, guards, axes)
    if importer.unguarded:
        shown = "; ".join(importer.unguarded[:3]) + (f" and {len(importer.unguarded) - 3} more" if len(importer.unguarded) > 3 else "")
        warn_user(f"the network's code asks about sizes, and was answered for the example alone: others may be computed wrongly ({shown})")
    scope = Scope()
    with torch.inference_mode():
        for name, tensor in importer.values.items():
            scope.store(name, tensor.detach().clone())
    return TorchModel(importer, scope, exported.call_spec.out_spec)
