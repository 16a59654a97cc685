"""`plan`, `summary` and `largest_batch`: of programs, and in one line of networks of torch. Programs are planned without torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

from foreshape.compiler.cost import Network, RanksPlan
from foreshape.compiler.cost import plan as plan_program
from foreshape.compiler.cost.ranks_plan import Trained
from foreshape.compiler.memory import Plan
from foreshape.core.pictures.tables import TableOfLayers
from foreshape.errors import SchemaError
from foreshape.language.program import Program, Variable
from foreshape.optimizer import Optimizer
from foreshape.transforms.passes.accumulate_distributed import DistributedPass

if TYPE_CHECKING:
    import torch

    from foreshape.interop.torch.network_plan import LargestSize, NetworkPlan, NetworkSummary
    from foreshape.interop.torch.torch_model import TorchModel

TorchNetwork: TypeAlias = "torch.nn.Module | torch.export.ExportedProgram | TorchModel | str | os.PathLike[str]"
"""A network of torch: a module, an exported program or its ``.pt2`` file, or a result of `foreshape.from_torch`."""


def is_program(value: Any, function: str) -> bool:
    """Tell whether it is a program, and not a network of torch. Raise `SchemaError` if it is neither."""
    if isinstance(value, Program) or hasattr(value, "ungathered"):
        return True
    torch = sys.modules.get("torch")
    model = sys.modules.get("foreshape.interop.torch.torch_model")
    if isinstance(value, (str, os.PathLike)) and os.fspath(cast("str | os.PathLike[str]", value)).endswith(".pt2"):
        return False
    if torch is not None and isinstance(value, (torch.nn.Module, torch.export.ExportedProgram)):
        return False
    if model is not None and isinstance(value, model.TorchModel):
        return False
    kinds = "a program, or a network of torch: an nn.Module, an ExportedProgram, a .pt2 file, or what fs.from_torch gives"
    how = "; fs.load_inference_model(path).program is a saved network's" if isinstance(value, (str, os.PathLike)) else ""
    raise SchemaError(f"{function} takes {kinds}; seen {type(cast('object', value)).__name__}{how}")


@overload
def plan(program: Program | Trained, fetch: Iterable[Variable | str] | Variable | str = (), *, lengths: Mapping[str, Sequence[int]] | None = None) -> Plan: ...


@overload
def plan(
    program: Program | Trained,
    fetch: Iterable[Variable | str] | Variable | str = (),
    *,
    ranks: int,
    within: int | str | None = None,
    network: Network | None = None,
    device: Any = None,
    threads: int = 1,
    strategies: Sequence[DistributedPass] = (),
    loss: Variable | str | None = None,
    accumulate: int = 1,
    lengths: None = None,
    **sizes: int,
) -> RanksPlan: ...


@overload
def plan(program: TorchNetwork, example: Any = None, /, *, optimizer: Optimizer | None = None, dynamic: Sequence[Any] | None = None) -> NetworkPlan: ...


def plan(program: Any, fetch: Any = None, **options: Any) -> Any:
    """Return the memory needed by a program, or by a network of torch.

    Of a program, as `foreshape.compiler.cost.plan`: of its fetches (a saved network's own by default), as numbers and as a formula. For many ranks also the
    messages and waiting of each, and the time of a step: ``fs.plan(program, ranks=64, batch=4096)``.

    Of a network of torch, ``fs.plan(module, example)``: of a call without gradients, or of a training step with an ``optimizer``. The memory of eager torch
    is predicted, and the one of Foreshape's own step on a processor is planned; both are told, apart. The loss of a training step is the one given to
    `from_torch`, or the first result if it is one number, otherwise the sum of the results' means.

    Args:
        program: a program, a result of `training_program`, or a network of torch: an ``nn.Module`` in its mode, an ``ExportedProgram`` or its ``.pt2`` file,
            or a result of `from_torch`.
        fetch: variables or names of a program; of a module an example of its inputs, a tuple or one tensor.
        options: of a program as `foreshape.compiler.cost.plan` takes them; of a network of torch ``optimizer``, one of `foreshape.optimizer`, and ``dynamic``,
        its open
            axes as for `from_torch`.

    Raises:
        SchemaError: a module without an example; torch.export refuses it. MemoryPlanError, DescriptionError: as `foreshape.compiler.cost.plan`.
    """
    if is_program(program, "plan"):
        return plan_program(program, () if fetch is None else fetch, **options)
    if "device" in options:
        raise SchemaError("the plan of a network of torch is one of the processor: fs.forecast(module, example, device=...) tells the memory of a GPU")
    return _network_plan(program, fetch, **options)


def _network_plan(network: Any, example: Any = None, optimizer: Optimizer | None = None, dynamic: Sequence[Any] | None = None) -> NetworkPlan:
    from foreshape.interop.torch import network_plan

    return network_plan.plan(network, example, optimizer, dynamic)


@overload
def summary(program: Program | Trained, /, *, batch: int | None = None, depth: int | None = None, rows: int = 32, **sizes: int) -> TableOfLayers: ...


@overload
def summary(program: TorchNetwork, example: Any = None, /, *, optimizer: Optimizer | None = None, dynamic: Sequence[Any] | None = None) -> NetworkSummary: ...


def summary(program: Any, example: Any = None, **options: Any) -> Any:
    """Return the layers as a table: of a program, as `Program.summary`, or of a network of torch.

    Of a network of torch two lines follow: the memory of eager torch, and of Foreshape's own step on a processor, as by `plan`.

    Args:
        program: a program, or a network of torch as for `plan`.
        example: of a module its inputs, a tuple or one tensor.
        options: of a program as `Program.summary` takes them; of a network of torch as `plan` does.

    Raises:
        SchemaError: as `plan` and `Program.summary`.
    """
    if is_program(program, "summary"):
        return (program if isinstance(program, Program) else program.program).summary(**options)
    from foreshape.interop.torch.network_plan import NetworkSummary

    return NetworkSummary(_network_plan(program, example, **options))


@overload
def largest_batch(program: Program | Trained, fetch: Any = None, /, *, within: int | str, name: str = "batch", **sizes: int) -> int: ...


@overload
def largest_batch(
    program: TorchNetwork,
    example: Any = None,
    /,
    *,
    within: int | str,
    optimizer: Optimizer | None = None,
    dynamic: Sequence[Any] | None = None,
    name: str = "batch",
    **sizes: int,
) -> LargestSize: ...


def largest_batch(program: Any, example: Any = None, *, within: int | str, name: str = "batch", **options: Any) -> Any:
    """Return the largest batch within so many bytes: of a program a number, of a network of torch two: of eager torch, and of Foreshape's own step.

    Args:
        program: a program, a result of `training_program`, or a network of torch as for `plan`.
        example: of a module its inputs, a tuple or one tensor; of a program its fetches.
        within: bytes, or as "8 GiB".
        name: the open size asked for.
        options: the values of other open sizes, as ``words=128``; of a network of torch also ``optimizer`` and ``dynamic`` as for `plan`.

    Raises:
        MemoryPlanError: it does not fit even with 1 (of a network of torch this is told in the result); there is no such open size.
        SchemaError: as `plan`.
    """
    if is_program(program, "largest_batch"):
        return plan_program(program, () if example is None else example).largest(name, within, **options)
    settings = {n: options.pop(n) for n in ("optimizer", "dynamic") if n in options}
    return _network_plan(program, example, **settings).largest(name, within, **options)
