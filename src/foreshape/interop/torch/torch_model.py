"""`TorchModel`: a network of torch as a program, called as the module is."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

from foreshape.errors import ExecutionError, FeedError, GuardError, SchemaError
from foreshape.interop.model import InferenceModel
from foreshape.interop.ragged_model import Ragged, on_ragged_rows
from foreshape.interop.state_dicts import remember_names, state_dict
from foreshape.interop.torch.eager_memory import EagerGraph
from foreshape.interop.torch.exporting import is_exported
from foreshape.interop.torch.module_import import import_exported, import_module, sizes_of, tensors_of
from foreshape.interop.torch.nesting import Nesting, as_tensor, check_alike, feed_dims, result_kind
from foreshape.interop.torch.open_axes import Bounds, flat_axes
from foreshape.interop.torch.size_limits import SizeLimits
from foreshape.interop.torch.torch_importer import TorchImporter
from foreshape.interop.torch.training_reads import asks_itself
from foreshape.interop.torch.untyped_torch import pytree, torch
from foreshape.interop.torch.with_loss import NETWORK, mode_of_test, with_loss
from foreshape.language.program import Program, Variable, program_guard
from foreshape.language.program.call_site import warn_user
from foreshape.runtime.engine import Executor, Scope
from foreshape.transforms.passes import for_test


class TorchModel:
    """A network of torch as a program.

    Attributes:
        program: the network. Parameters and buffers have their names in the module, ops its paths as scopes and the user's lines.
        scope: holds the values of parameters and buffers, copies of the module's.
        feeds: the names of the inputs, in the order of torch's pytrees.
        targets: the names of the loss's further inputs, if it came with one.
        constants: the inputs that are no tensors, each with the value it has in the program.
        fetches: its results, variables of the program, in the order of torch's pytrees.
        loss: the loss it came with, otherwise its first result if this is one number of floats, or None.
        buffers: the names of buffers changed by a run.
        unguarded: questions about sizes in the network's own code, answered for the example alone and without a guard: other sizes may be computed wrongly.
        missing: the operators of torch without a form here, each with the paths of its modules, lines and reasons. With any, no run begins.
        limits: the name of an open size -> what our rules and the guards of torch's trace ask of it, each with its line.
        eager: the graph as eager torch goes through it, for the memory it takes.
        sizes: the values of the open sizes in the example.
    """

    def __init__(self, importer: TorchImporter, scope: Scope, out_tree: Any, targets: int | None = None, test: TorchModel | None = None) -> None:
        self.program: Program = importer.program
        self.scope = scope
        at = len(importer.feeds) - (targets or 0)
        self.feeds, self.targets = importer.feeds[:at], importer.feeds[at:]
        self.fetches: list[Variable] = importer.fetches
        first = self.fetches[0] if self.fetches else None
        self.loss: Variable | None = first if first is not None and _is_a_number(first) else None
        self._results = importer.results
        self._out_tree = out_tree
        self._with_loss = targets is not None
        if self._with_loss:
            loss = self._results[-1]
            if not isinstance(loss, Variable) or not _is_a_number(loss):
                raise SchemaError.must("loss", "a function that gives one number of floats, of the results of the module and its targets", f"{loss}")
            *self.fetches, self.loss = self.fetches
            *self._results, _ = self._results
            trees = pytree()
            self._out_tree = trees.tree_structure(trees.tree_unflatten(range(len(importer.results)), out_tree)[0])
        self.constants = importer.constant_inputs
        self.missing = importer.missing
        self.unguarded = importer.unguarded
        self.buffers = list(importer.changed)
        self._executor = Executor()
        self._gradients: tuple[Program, dict[str, str]] | None = None
        self._test = test
        self.trains = any(op.attributes.values.get("is_test") is False for op in self.program.all_ops())
        """A part of the module was in ``train()``; of an exported program, an operator has its form of training."""
        self.eager = EagerGraph(importer.traced, importer.input_dims, importer.inside, self._with_loss)
        self.sizes = importer.sizes
        self.limits = SizeLimits(self.program, open_sizes(self.program, importer.feeds), importer.given_guards, importer.symbols)

    def sizes_of(self, inputs: Any) -> dict[str, int]:
        """Return the values of the open sizes in the inputs of a call, a tuple or one tensor, with the targets behind them.

        Raises:
            FeedError: another number of tensors.
        """
        return sizes_of(self.program, [*self.feeds, *self.targets], tensors_of((inputs,)))

    @property
    def nesting(self) -> Nesting:
        """Return the nesting of the results."""
        return Nesting(self._out_tree, [result_kind(v) for v in self._results])

    def __call__(self, *inputs: Any) -> Any:
        """Return the module's results, as tensors in its own nesting; with the loss's targets behind its inputs ``(results, loss)``.

        Raises:
            FeedError, GuardError: other inputs than the program takes. ExecutionError: the network needs operators missing here.
        """
        feed = self._feed(inputs)
        both = self._with_loss and len(feed) > len(self.feeds)
        fetches = [*self.fetches, *([self.loss] if both and self.loss is not None else [])]
        values = self._run(self.program, feed, [v.name for v in fetches])
        found = [as_tensor(value, of, feed.values()) for of, value in zip(fetches, values, strict=True)]
        results = self.nesting.filled(found[: len(self.fetches)])
        return (results, found[-1]) if both else results

    def gradients(self, *inputs: Any) -> dict[str, Any]:
        """Return parameter -> the gradient of the loss, as tensors.

        Raises:
            SchemaError: there is no `loss`. FeedError, GuardError: as for a call.
        """
        if self._gradients is None:
            if self.loss is None:
                shown = ", ".join(map(str, self.fetches))
                raise SchemaError(f"gradients are those of one number of floats, a loss; the module gives {shown}: give from_torch loss=")
            from foreshape.transforms.backward import append_backward

            program = self.program.clone()
            with program_guard(program):
                pairs = append_backward(program.global_block.var(self.loss.name))
            self._gradients = program, {parameter.name: gradient.name for parameter, gradient in pairs}
        program, names = self._gradients
        found = self._run(program, self._feed(inputs), list(names.values()))
        variables = [program.global_block.var(name) for name in names.values()]
        return {name: as_tensor(value, of, ()) for name, of, value in zip(names, variables, found, strict=True)}

    def for_test(self) -> TorchModel:
        """Return the network as torch's ``eval`` has it, with the same parameters and scope: without dropout, normalized by the moving statistics."""
        if self._test is None:
            made = copy.copy(self)
            made.program, made.buffers, made._gradients, made._test, made.trains = for_test(self.program), [], None, made, False
            block = made.program.global_block
            made.fetches = [block.var(v.name) for v in self.fetches]
            made.loss = None if self.loss is None else block.var(self.loss.name)
            self._test = made
        return self._test

    def state_dict(self) -> dict[str, Any]:
        """Return the values of the module's ``state_dict``, by its names, as tensors: as `foreshape.state_dict` of the scope."""
        return state_dict(self.scope)

    def _run(self, program: Program, feed: Mapping[str, Any], fetches: Sequence[str]) -> list[Any]:
        try:
            return self._executor.run(program, feed, fetches, self.scope)
        except GuardError as error:
            values = sizes_of(program, list(feed), list(feed.values()))
            raise error.reworded(f"{error}{self.limits.refusal(values, error.required)}") from None

    def _feed(self, inputs: Sequence[Any]) -> dict[str, Any]:
        if self.missing:
            listed = "".join(
                f"\n    {name}: {len(places)} in {', '.join(sorted(set(places))[:3])}{' and others' if len(set(places)) > 3 else ''}"
                for name, places in self.missing.items()
            )
            raise ExecutionError(f"the network needs operators of torch that have no form here:{listed}")
        given, others = Nesting.leaves(inputs)
        for (name, value), other in zip(self.constants, others, strict=False):
            if type(other) is not type(value) or other != value:
                raise FeedError(f"the program was made with {name} = {value!r}; seen {other!r}: numbers, texts and None are fixed, tensors are not")
        names = self.feeds if len(given) == len(self.feeds) else [*self.feeds, *self.targets]
        if len(given) != len(names):
            more = f", and for the loss {', '.join(self.targets)}" if self.targets else ""
            raise FeedError(f"the network takes the tensors {', '.join(self.feeds)}{more}; seen {len(given)}")
        check_alike(self.program, names, given)
        return {name: leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for name, leaf in zip(names, given, strict=True)}

    def __repr__(self) -> str:
        feeds = ", ".join(str(self.program.global_block.var(n)) for n in [*self.feeds, *self.targets])
        loss = f"; {self.loss}" if self._with_loss else ""
        return f"TorchModel({feeds} -> {', '.join(map(str, self.fetches))}{loss})"


def _is_a_number(variable: Variable) -> bool:
    return variable.spec.dims is not None and variable.spec.elements == 1 and variable.spec.known_dtype.is_floating


def open_sizes(program: Program, feeds: Sequence[str]) -> list[str]:
    """Return the names of the open sizes of the inputs."""
    dims = (dim for name in feeds for dim in feed_dims(program, name))
    return list(dict.fromkeys(str(dim) for dim in dims if not isinstance(dim, int)))


def _as_test(exported: Any, importer: TorchImporter) -> TorchModel:
    scope = Scope()
    _fill(scope, importer)
    return TorchModel(importer, scope, exported.call_spec.out_spec).for_test()


def _of_test(module: Any, inputs: Sequence[Any], bounds: Bounds, importer: TorchImporter, scope: Scope, targets: int | None) -> TorchModel | None:
    """Return the network imported in torch's ``eval`` mode, if the operators of the one in training do not tell all of it; otherwise None."""
    asked = asks_itself(importer.reads, importer.aware) if any(part.training for part in module.modules()) else []
    if not asked:
        return None
    with mode_of_test(module):
        exported, made = import_module(module, inputs, importer.axes, bounds, _as_test, importer.inside, "for_test.")
    shown = ", ".join(asked[:3]) + (f" and {len(asked) - 3} more" if len(asked) > 3 else "")
    warn_user(
        f"the network's code asks whether it is trained, or always drops, in {shown}: for_test() of the model is its eval mode, imported apart; a copy "
        "of the program for a test, as validation within fs.train has it, goes the way of the training, with dropout off and moving statistics"
    )
    _fill(scope, made)
    model = TorchModel(made, scope, exported.call_spec.out_spec, targets)
    model.trains = False
    return model


def _fill(scope: Scope, importer: TorchImporter) -> None:
    """Put copies of the values of parameters, buffers and constants into a scope, unless they are there."""
    with torch.inference_mode():
        for name, tensor in importer.values.items():
            if name not in scope:
                scope.store(name, tensor.detach().clone())


@overload
def from_torch(
    module: Any,
    example_inputs: Any = ...,
    dynamic: Sequence[Any] | None = ...,
    *,
    loss: Callable[..., Any] | None = ...,
    targets: Any = ...,
    ragged: None = ...,
) -> TorchModel: ...
@overload
def from_torch(module: Any, example_inputs: Any = ..., dynamic: Sequence[Any] | None = ..., *, ragged: Ragged) -> InferenceModel: ...
def from_torch(
    module: Any,
    example_inputs: Any = None,
    dynamic: Sequence[Any] | None = None,
    *,
    loss: Callable[..., Any] | None = None,
    targets: Any = (),
    ragged: Ragged | None = None,
) -> TorchModel | InferenceModel:
    """Return a module of torch as a program, with its parameters and buffers.

    Args:
        module: an ``nn.Module``, in its mode (``train`` or ``eval``), an ``ExportedProgram``, or the path of a ``.pt2`` with one.
        example_inputs: the inputs of a call, a tuple or one tensor; not for an exported program.
        dynamic: for each input, and then for each target, None or axis -> the name of a symbol, or a ``torch.export.Dim``, whose limits are kept; equal
            names are equal sizes. By default the first axis of each tensor as long as the first one is ``batch``. For a PackedSequence ``{0: name}`` names the
            number of its sequences; rows and steps are then open too.
        loss: gives one number from the module's results and the targets, such as ``torch.nn.functional.cross_entropy``; a module's own loss needs none.
        targets: an example of the loss's further inputs, a tuple or one tensor.
        ragged: the name of the mask of a network of padded texts; the result is then a model of texts without padding, as by `unpad`. Or the
            arguments of `unpad`, ``{"mask": "attention_mask", "side": "left"}``.

    Raises:
        SchemaError: torch.export refuses the module; the module changes an input; the loss is not one number, or stands beside ``ragged``.
        FormatError: the file cannot be read. UnpadError: with ``ragged``: a masked row reaches a text's own rows or results, or may.
    """
    if ragged is not None and loss is not None:
        raise SchemaError("loss= is for a padded network; on ragged rows, unpad its program and append a loss to that")
    scope, test = Scope(), None
    told = None if loss is None else 0
    if isinstance(module, (str, os.PathLike)):
        from foreshape.interop.torch.archive import read_exported

        module = read_exported(module)
    if is_exported(module):
        if loss is not None:
            raise SchemaError("an exported program has its loss in its graph; loss= is for an nn.Module")
        exported, importer = import_exported(module, dynamic)
        if module.example_inputs is not None:
            importer.sizes = sizes_of(importer.program, importer.feeds, tensors_of(module.example_inputs))
        named = exported.state_dict
        _fill(scope, importer)
    else:
        if example_inputs is None:
            raise SchemaError("a module of torch needs an example of its inputs, a tuple or one tensor: its graph is that of a call")
        inputs, aims = ((*given,) if type(given) in (tuple, list) else (given,) for given in (example_inputs, targets))
        network = module
        if loss is not None:
            network, told = with_loss(module, loss, len(inputs), len(aims)), len(tensors_of(aims))
        elif aims:
            raise SchemaError("targets are inputs of a loss: give loss= too")
        axes, bounds = flat_axes([*inputs, *aims], dynamic)
        exported, importer = import_module(network, (*inputs, *aims), axes, bounds, _as_test, NETWORK if loss is not None else "")
        named = module.state_dict(keep_vars=True)
        _fill(scope, importer)
        if bounds:
            limits = SizeLimits(importer.program, (), (), {}).narrower(bounds)
            if limits:
                warn_user(f"the network takes fewer sizes than were said: {'; '.join(limits)}")
        test = _of_test(network, (*inputs, *aims), bounds, importer, scope, told)
    if importer.unguarded:
        shown = "; ".join(importer.unguarded[:3]) + (f" and {len(importer.unguarded) - 3} more" if len(importer.unguarded) > 3 else "")
        warn_user(f"the network's code asks about sizes, and was answered for the example alone: others may be computed wrongly ({shown})")
    model = TorchModel(importer, scope, exported.call_spec.out_spec, told, test)
    if not is_exported(module):
        model.trains = any(part.training for part in module.modules())
    tensors = {name: value for name, value in named.items() if isinstance(value, torch.Tensor) and value.layout is torch.strided}  # sparse ones are constants
    own = {str(name): importer.names.get(name) or str(name) for name in tensors}
    for name in [n for n, kept in own.items() if kept not in scope]:  # unused by the graph
        scope.store(name, named[name].detach().clone())
    remember_names(own, scope, model.program, *([] if test is None else [test.program]))
    if ragged is None:
        return model
    return on_ragged_rows(InferenceModel.of(model.program, model.feeds, model.fetches, scope), ragged)
