"""Changes in place of a graph of torch.export: each makes a new value, and so do the tensors that share its memory.

torch.export's own pass for this (`run_decompositions({})`) traces the whole network once more, longer than the export itself with open sizes. What is done
here are changes of whole tensors, and of parts that slices, selections, reshapes and transposes name; the rest is left to that pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from foreshape.errors import SchemaError
from foreshape.interop.forms.rules import torch_reader
from foreshape.interop.torch.import_state import ImportState
from foreshape.interop.torch.open_size import size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.untyped_torch import torch
from foreshape.language.program import Variable


class NotFunctional(Exception):
    """The graph changes memory in a way that is left to torch's own pass."""


_DRAWN: Final = frozenset(("normal_", "bernoulli_", "geometric_", "random_", "cauchy_", "log_normal_"))
"""Their names without the mark are other operators."""
_SHAPES: Final = frozenset(("squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_", "detach_"))
"""They change no numbers."""
_MEMORY: Final = frozenset(("as_strided_", "set_", "resize_", "resize_as_"))
_WRITTEN: Final[dict[Any, int | None]] = {}


def written_argument(target: Any) -> int | None:
    """Return the place of the argument that an operator changes; None for none. Raises `NotFunctional` for another one than the first."""
    found = _WRITTEN.get(target, -1)
    if found == -1:
        schema = getattr(target, "_schema", None)
        places = [at for at, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write] if schema is not None else []
        found = None if not places else 0 if places == [0] else 1
        _WRITTEN[target] = found
    if found == 1:
        raise NotFunctional
    return found


def storage_of(node: Any) -> int | None:
    """Return a number for the memory of a node's tensor."""
    value: Any = getattr(node, "meta", {}).get("val")
    return int(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else None


def changed_kinds(exported: Any) -> set[str]:
    """Return the kinds of inputs that the graph changes in place, as ``PARAMETER``."""
    kinds = {spec.arg.name: spec.kind.name for spec in exported.graph_signature.input_specs}
    held = {storage_of(node): kinds.get(node.name, "") for node in exported.graph.nodes if node.op == "placeholder"}
    out = {spec.kind.name.removesuffix("_MUTATION") for spec in exported.graph_signature.output_specs if spec.kind.name.endswith("_MUTATION")}
    for module in exported.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            try:
                written = node.op == "call_function" and written_argument(node.target) is not None
            except NotFunctional:
                continue
            if written and node.target.__name__.split(".")[0] not in _SHAPES:
                out.add(held.get(storage_of(node.args[0]), ""))
    return out - {""}


def changed_words(name: str) -> str:
    """Return the words about an input or parameter that the network changes."""
    return f"the network changes {name} in each call, an input or a parameter: give it a copy, or a buffer of the module instead"


class Writes:
    """The changes of one import.

    Attributes:
        stale: views of memory changed since: to be computed anew before their next use.
        buffers: an input of the graph, a buffer -> its new value.
    """

    def __init__(self, importer: ImportState) -> None:
        self.importer = importer
        self.stale: set[Any] = set()
        self.buffers: dict[Any, Any] = {}
        self._sharing: dict[int, list[Any]] | None = None

    @functools.cached_property
    def has_any(self) -> bool:
        """Tell whether an operator of the graph changes memory. Raises as `written_argument`."""
        return next((True for n in self.importer.exported.graph.nodes if n.op == "call_function" and written_argument(n.target) is not None), False)

    def note(self, node: Any, value: Any) -> None:
        """Take the result of an operator that changes its first argument as the new value of that, and of what shares its memory."""
        name = node.target.__name__.split(".")[0]
        changed = node.args[0]
        if name in _SHAPES:
            return
        if name in _MEMORY or name in _DRAWN or not isinstance(value, Variable) or storage_of(changed) is None or storage_of(node) != storage_of(changed):
            raise NotFunctional
        if not value.known:  # of an operator to be taken apart
            raise NotFunctional
        whole = self._write(changed, value)
        if self._of_storage(changed)[0] is not whole[-1]:  # the memory comes from elsewhere, as a part of a list does
            raise NotFunctional
        fresh = {node, *whole}
        self.stale -= fresh
        self.stale |= {one for one in self._of_storage(changed) if one in self.importer.found and one not in fresh}

    def _of_storage(self, node: Any) -> list[Any]:
        if self._sharing is None:
            self._sharing = {}
            for one in node.graph.nodes:
                storage = storage_of(one)
                if storage is not None:
                    self._sharing.setdefault(storage, []).append(one)
        return self._sharing[storage_of(node) or 0]

    def _write(self, node: Any, value: Any) -> list[Any]:
        """Set the value of a node, and of the nodes that it is a view of; return them, the owner of the memory last."""
        importer = self.importer
        found = importer.found
        out: list[Any] = []
        while True:
            found[node] = value
            out.append(node)
            if node.op == "placeholder":
                kind = importer.kinds[node.name]
                if kind != "BUFFER":
                    raise SchemaError(
                        f"the network changes {node.name} in each call, an input or a parameter: give it a copy, or a buffer of the module instead"
                    )
                self.buffers[node] = value
                return out
            if node.op != "call_function":
                raise NotFunctional
            base = node.args[0] if node.args else None
            if getattr(base, "op", None) is None or storage_of(base) != storage_of(node):
                return out
            name = node.target.__name__.split(".")[0]
            if written_argument(node.target) == 0:
                node = base  # its value is this one
                continue
            if base in self.stale:
                importer.renew(base)
            value = self._put_back(name, node, base, value)
            node = base

    def _put_back(self, name: str, node: Any, base: Any, value: Any) -> Any:
        """Return the base of a view with the view's new value in its place."""
        importer = self.importer
        whole: Any = importer.found[base]
        if not isinstance(whole, Variable):
            raise NotFunctional
        given, named = [importer.given(one) for one in node.args[1:]], {k: importer.given(v) for k, v in node.kwargs.items()}
        call = TorchCall(importer, base)
        if name in ("slice", "select"):
            return _rule(f"{name}_scatter")(call, whole, value, *given, **named)
        if name in ("transpose", "swapaxes"):
            return _rule(name)(call, value, *given, **named)
        if name == "permute":
            order = [call.axis(whole, d) for d in given[0]]
            return _rule("permute")(call, value, [order.index(a) for a in range(len(order))])
        if name == "t":
            return _rule("t")(call, value)
        if name in ("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "view_as", "reshape_as"):
            return call.reshape(value, [size_of(whole, a) for a in range(call.rank(whole))])
        if name in ("detach", "alias", "contiguous", "to", "lift_fresh", "type_as") and value.dtype is whole.dtype:
            return value
        raise NotFunctional


def _rule(name: str) -> Callable[..., Any]:
    found = torch_reader(name, "default")
    assert found is not None
    return found
