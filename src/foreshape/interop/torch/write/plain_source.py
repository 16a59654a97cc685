"""The text of a module of torch: its functions, its parameters, and the lines of its ``forward``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from foreshape.interop.torch.write.parameter_names import renamed
from foreshape.interop.torch.write.plain_names import DEVICE, Statement, printable, with_names
from foreshape.interop.torch.write.plain_writer import PlainWriter
from foreshape.program import Variable

_WIDTH: Final = 140


class PlainSource(NamedTuple):
    """A network as the source of a module of torch.

    Attributes:
        text: the source; its class is ``Network``.
        keys: the key of each tensor in the ``state_dict`` -> the program's parameter; two keys for a tied one.
        constants: key -> the array of a long constant, a buffer of the module.
        inputs: the names of the arguments of ``forward``.
        ops: the number of the written ops.
    """

    text: str
    keys: dict[str, str]
    constants: dict[str, Any]
    inputs: list[str]
    ops: int


def source_of(
    writer: PlainWriter, results: Sequence[str], ends: Mapping[str, str], trained: set[str], title: str, weights: str, tied: Mapping[str, str]
) -> PlainSource:
    """Return the source of a writer's lines.

    Args:
        results: the expressions of the results.
        ends: the words for inputs and results, for the docstring.
        trained: the learning parameters; the others are buffers.
        weights: the file for ``load``; empty for none.
        tied: a further key -> the program's parameter. Other values are not saved, where it has some: the module the program came from did not.
    """
    text = "\n".join([*[s.text for s in _all(writer.statements)], *results])
    held = {name: key for name, key in writer.keys.items() if _mentions(text, key)}
    said = [title, "", "It is torch code alone, written by Foreshape.", "", *[f"    {name}: {words}" for name, words in ends.items()]]
    odd = renamed(held)
    if odd:
        said += ["", "Parameters whose names torch does not take:", "", *[f"    {key}: {name}" for key, name in odd.items()]]
    lines = ['"""' + "\n".join(_in_docstring(line) for line in said).lstrip('"'), '"""', "", "from __future__ import annotations", ""]
    imports = {"torch": "import torch", **writer.sources.imports}
    second = {key: held[name] for key, name in tied.items() if name in held and key != held[name]}
    body = [*_class(writer, results, held, trained, second, {*tied, *tied.values()})]
    texts = {**writer.sources.texts, **_registering(held, writer.constants, trained, bool(second))}
    if weights:
        if held or writer.constants:
            imports |= {"Path": "from pathlib import Path"}
            body += ["", "", *_LOAD.format(weights=json.dumps(weights)).splitlines()]
        else:
            body += ["", "", *_LOAD_NOTHING.splitlines()]
    if "F." in "\n".join(body):
        imports["F"] = "import torch.nn.functional as F"
    others = {*imports.values()} - {"import torch", "import torch.nn.functional as F", "from torch import Tensor"}
    own = sorted(line for line in others if "torch" not in line)
    own.sort(key=lambda line: line.startswith("from "))
    of_torch = sorted(line for line in others if "torch" in line)
    lines += [*own, *([""] if own else []), "import torch"]
    lines += ["import torch.nn.functional as F"] if "F" in imports else []
    lines += ["from torch import Tensor, nn", *of_torch, ""]
    for one in texts.values():
        lines += ["", *([""] if one.startswith(("def ", "class ", "@")) else []), *one.splitlines()]
    lines += ["", "", *body]
    named = {key: name for name, key in held.items()}
    keys, ops = {**named, **{key: named[same] for key, same in second.items()}}, sum(1 for _ in writer.program.all_ops())
    return PlainSource("\n".join(lines) + "\n", keys, writer.constants, writer.fed, ops)


def _in_docstring(line: str) -> str:
    return printable(line).replace("\\", "/").replace('"""', "'''")


_LOAD: Final = '''\
def load(weights: str | Path = Path(__file__).with_name({weights})) -> Network:
    """Return the network with its weights, for inference; ``train()`` switches dropout and batch normalization to training."""
    from safetensors.torch import load_file

    network = Network()
    network.load_state_dict(load_file(weights))
    return network.eval()
'''
_LOAD_NOTHING: Final = '''\
def load() -> Network:
    """Return the network, for inference; ``train()`` switches dropout to training."""
    return Network().eval()
'''


def _mentions(text: str, key: str) -> bool:
    from foreshape.interop.torch.write.parameter_names import access

    return re.search(rf"{re.escape(access(key))}(?!\w)", text) is not None


def _registering(held: Mapping[str, str], constants: Mapping[str, Any], trained: set[str], tied: bool) -> dict[str, str]:
    from foreshape.interop.torch.write.helpers import registering
    from foreshape.interop.torch.write.sources import Sources

    sources = Sources()
    if any(name in trained for name in held):
        sources.add(registering.parameter)
    if constants or any(name not in trained for name in held):
        sources.add(registering.buffer)
    if tied:
        sources.add(registering.tied)
    return sources.texts


def _all(statements: Sequence[Statement]) -> Iterator[Statement]:
    for one in statements:
        yield one
        for head, body in one.bodies:
            yield Statement((), head)
            yield from _all(body)


def _class(writer: PlainWriter, results: Sequence[str], held: Mapping[str, str], trained: set[str], tied: Mapping[str, str], saved: set[str]) -> Iterator[str]:
    yield "class Network(nn.Module):"
    yield "    def __init__(self) -> None:"
    yield "        super().__init__()"
    for name, key in held.items():
        kept = not saved or name in trained or name in saved
        yield f"        {_registered(writer.parameters[name], key, name in trained, kept)}"
    for key, same in tied.items():
        yield f"        tied(self, {key!r}, {same!r})"
    for key, array in writer.constants.items():
        yield f"        buffer(self, {key!r}, {array.shape!r}, torch.{array.dtype}{', persistent=False' if saved else ''})"
    yield ""
    yield f"    def forward(self, {', '.join(writer.fed)}):" if writer.fed else "    def forward(self):"
    if any(DEVICE in s.text for s in _all(writer.statements)):
        yield f"        device = {with_names(writer.device_source(), writer.names)}"
    yield from _lines(writer.statements, writer, "        ")
    yield f"        return {', '.join(with_names(r, writer.names).replace(DEVICE, 'device') for r in results)}"


def _registered(variable: Variable, key: str, learns: bool, kept: bool) -> str:
    spec = variable.spec
    of = "bfloat16" if spec.known_dtype.name == "bf16" else spec.known_dtype.numpy_name
    dims = tuple(d if isinstance(d, int) else 0 for d in spec.known_dims)
    return f"{'parameter' if learns else 'buffer'}(self, {key!r}, {dims!r}{'' if of == 'float32' else f', torch.{of}'}{'' if kept else ', persistent=False'})"


def _lines(statements: Sequence[Statement], writer: PlainWriter, indent: str) -> Iterator[str]:
    scope = ""
    for one in statements:
        if one.scope and one.scope != scope:
            yield ""
            yield f"{indent}# {printable(one.scope)}"
        scope = one.scope or scope
        if one.bodies:
            for head, body in one.bodies:
                yield f"{indent}{with_names(head, writer.names)}"
                yield from _lines(body, writer, f"{indent}    ") if body else [f"{indent}    pass"]
            continue
        text = with_names(one.text, writer.names).replace(DEVICE, "device")
        if one.targets:
            names = [writer.names.get(n, "_") for n in one.targets]
            text = f"{', '.join(names)} = {text}"
        comment = f"  # {printable(one.comment)}" if one.comment else ""
        if comment and len(indent) + len(text) + len(comment) > _WIDTH + 20:
            yield f"{indent}{comment.lstrip()}"
            comment = ""
        yield from _broken(f"{indent}{text}", comment, indent)


def _broken(line: str, comment: str, indent: str) -> Iterator[str]:
    """Yield a line, a long one broken between the arguments of its last call."""
    if len(line) + len(comment) <= _WIDTH + 20 or not line.endswith(")"):
        yield line + comment
        return
    depth, start, cuts = 0, -1, list[int]()
    for at in range(len(line) - 1, -1, -1):
        if line[at] in ")]}":
            depth += 1
        elif line[at] in "([{":
            depth -= 1
            if depth == 0:
                start = at
                break
        elif line[at] == "," and depth == 1:
            cuts.append(at)
    if start < 0 or not cuts:
        yield line + comment
        return
    yield line[: start + 1] + comment
    row = ""
    pieces = [line[a:b].strip() for a, b in zip([start + 1, *[c + 1 for c in reversed(cuts)]], [*[c + 1 for c in reversed(cuts)], len(line) - 1], strict=True)]
    for piece in pieces:
        if row and len(row) + len(piece) + len(indent) + 5 > _WIDTH:
            yield f"{indent}    {row}"
            row = ""
        row = f"{row} {piece}" if row else piece
    yield f"{indent}    {row.rstrip(',')},"
    yield f"{indent})"


def tensors_of(source: PlainSource, value_of: Callable[[str], Any]) -> dict[str, Any]:
    """Return the ``state_dict`` of a module, key -> tensor: the program's values, by name, and the long constants."""
    from foreshape.interop.torch.untyped_torch import torch

    out = {key: value_of(name) for key, name in source.keys.items()}
    return out | {key: torch.from_numpy(array.copy()) for key, array in source.constants.items()}
