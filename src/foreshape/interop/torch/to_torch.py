"""`to_torch`: a program as a module of torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from foreshape.compiler.lowering import lower
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.interop.state_dicts import module_names
from foreshape.interop.torch.network_steps import NetworkSteps, forward_of
from foreshape.language.program import Program, Variable
from foreshape.runtime.engine import Scope, default_scope
from foreshape.runtime.feeding.tables import described
from foreshape.transforms.passes.for_training import mark_parameters


def to_torch(
    program: Any,
    scope: Scope | None = None,
    *,
    feeds: Iterable[Variable | str] | None = None,
    fetches: Iterable[Variable | str] | Variable | str | None = None,
    plain: bool = False,
    check: bool = True,
) -> Any:
    """Return a network as an ``nn.Module``: its parameters and buffers, its forward pass, and gradients by its own backward pass.

    The module's parameters share their memory with the scope: an optimizer of torch changes the scope's values, and a run here the module's. ``train()``
    and ``eval()`` choose between the program and its copy for a test. Gradients and updates in the program are left out.

    Args:
        program: a `Program`; or a network with its values, of `from_torch`, `load_inference_model` or a `Predictor`. The tensors of a saved network are
            parameters, where the file marks none.
        scope: holds the program's values; by default the network's own, or the default scope.
        feeds: the inputs, in the order of the module's arguments; by default in the order of their description.
        fetches: the results; by default the network's own. One gives a tensor, several a tuple.
        plain: write the operators as code of torch, without anything of this package: the module's ``source``. Its tensors are copies then. A saved network,
            or a module imported in ``eval()``, has its dropout and batch normalization as in training in ``train()``.
        check: run plain code beside the program first, at the smallest sizes and at other small ones: results, gradients and changed values. A large network
            (past 2e10 multiply-adds or 3e8 numbers of parameters there) is compared in ``eval()`` at the smallest sizes alone.

    Raises:
        SchemaError: no results are known; an input is missing among ``feeds``. ExecutionError: the scope lacks values; an unknown operator.
        FormatError: operators without plain code; plain code that computes other numbers than the program.
    """
    nesting = None
    is_for_test = False
    own = program
    if hasattr(own, "model"):  # a predictor
        own = own.model
    if not isinstance(own, Program):
        if not all(hasattr(own, part) for part in ("program", "feeds", "fetches", "scope")):
            raise TypeMismatchError.must("the network", "a Program, or one with its values, as of from_torch or load_inference_model", type(program).__name__)
        nesting, is_for_test = getattr(own, "nesting", None), not getattr(own, "trains", False)
        scope = own.scope if scope is None else scope
        feeds = own.feeds if feeds is None else feeds
        if fetches is None:
            fetches = own.fetches
        else:
            nesting = None
        own = own.program
    assert isinstance(own, Program)
    scope = default_scope() if scope is None else scope
    own.refresh()
    results = _names(own, [fetches] if isinstance(fetches, (str, Variable)) else fetches)
    if len(set(results)) < len(results):
        raise SchemaError(f"the results are asked for once each; seen {', '.join(results)}")
    made = forward_of(own, results)
    mark_parameters(made)
    read = [v.name for v in lower(made.global_block, results).feeds]
    inputs = [n for n in described(made) if n in read] if feeds is None else _names(own, feeds)
    missing = [n for n in read if n not in inputs]
    if missing:
        raise SchemaError(f"the results need {', '.join(missing)}, which {'are' if len(missing) > 1 else 'is'} not among the inputs {', '.join(inputs)}")
    if plain:
        from foreshape.interop.torch.plain_module import plain_module

        return plain_module(made, scope, inputs, results, module_names(own, scope), is_for_test, check)
    from foreshape.interop.torch.torch_module import TorchNetwork  # its class is one of torch's

    return TorchNetwork(NetworkSteps(made, inputs, results), scope, nesting, module_names(own, scope))


def _names(program: Program, given: Iterable[Variable | str] | None) -> list[str]:
    """Return names of variables of a program; the results of its fetch ops by default."""
    block = program.global_block
    if given is None:
        fetched = sorted((op for op in block.ops if op.is_fetch), key=lambda op: int(op.attributes.values.get("col", 0) or 0))
        names: Sequence[str] = [n for op in fetched for n in op.input_names()]
        if not names:
            raise SchemaError("the program names no results: give fetches, variables or names")
        return list(names)
    return [block.var(v).name if isinstance(v, str) else block.var(v.name).name for v in given]
