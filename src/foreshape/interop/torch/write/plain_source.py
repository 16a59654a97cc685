"""The text of a module of torch: its functions, its parameters, and the lines of its ``forward``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from foreshape.interop.torch.write.parameter_names import renamed
from foreshape.interop.torch.write.plain_names import DEVICE, Statement, printable, with_names
from foreshape.interop.torch.write.plain_writer import PlainWriter
from foreshape.language.program import Variable

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
    used_keys = {name: key for name, key in writer.keys.items() if _mentions(text, key)}
    docstring = [title, "", "It is torch code alone, written by Foreshape.", "", *[f"    {name}: {words}" for name, words in ends.items()]]
    odd = renamed(used_keys)
    if odd:
        docstring += ["", "Parameters whose names torch does not take:", "", *[f"    {key}: {name}" for key, name in odd.items()]]
    lines = ['"""' + "\n".join(_in_docstring(line) for line in docstring).lstrip('"'), '"""', "", "from __future__ import annotations", ""]
    imports = {"torch": "import torch", **writer.sources.imports}
    second = {key: used_keys[name] for key, name in tied.items() if name in used_keys and key != used_keys[name]}
    body = [*_class(writer, results, used_keys, trained, second, {*tied, *tied.values()})]
    texts = {**writer.sources.texts, **_registering(used_keys, writer.constants, trained, bool(second))}
    if weights:
        if used_keys or writer.constants:
            imports |= {"Path": "from pathlib import Path"}
            body += ["", "", *_LOAD.format(weights=json.dumps(weights)).splitlines()]
        else:
            body += ["", "", *_LOAD_NOTHING.splitlines()]
    if "F." in "\n".join(body):
        imports["F"] = "import torch.nn.functional as F"
    imported = {*imports.values()} - {"import torch", "import torch.nn.functional as F", "from torch import Tensor"}
    standard = sorted(line for line in imported if "torch" not in line)
    standard.sort(key=lambda line: line.startswith("from "))
    of_torch = sorted(line for line in imported if "torch" in line)
    lines += [*standard, *([""] if standard else []), "import torch"]
    lines += ["import torch.nn.functional as F"] if "F" in imports else []
    lines += ["from torch import Tensor, nn", *of_torch, ""]
    for definition in texts.values():
        lines += ["", *([""] if definition.startswith(("def ", "class ", "@")) else []), *definition.splitlines()]
    lines += ["", "", *body]
    names = {key: name for name, key in used_keys.items()}
    keys, ops = {**names, **{key: names[first_key] for key, first_key in second.items()}}, sum(1 for _ in writer.program.all_ops())
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


def _registering(used_keys: Mapping[str, str], constants: Mapping[str, Any], trained: set[str], tied: bool) -> dict[str, str]:
    from foreshape.interop.torch.write.helpers import registering
    from foreshape.interop.torch.write.sources import Sources

    sources = Sources()
    if any(name in trained for name in used_keys):
        sources.add(registering.parameter)
    if constants or any(name not in trained for name in used_keys):
        sources.add(registering.buffer)
    if tied:
        sources.add(registering.tied)
    return sources.texts


def _all(statements: Sequence[Statement]) -> Iterator[Statement]:
    for statement in statements:
        yield statement
        for head, body in statement.bodies:
            yield Statement((), head)
            yield from _all(body)


def _class(
    writer: PlainWriter, results: Sequence[str], used_keys: Mapping[str, str], trained: set[str], tied: Mapping[str, str], saved: set[str]
) -> Iterator[str]:
    yield "class Network(nn.Module):"
    yield "    def __init__(self) -> None:"
    yield "        super().__init__()"
    for name, key in used_keys.items():
        persistent = not saved or name in trained or name in saved
        yield f"        {_registered(writer.parameters[name], key, name in trained, persistent)}"
    for key, first_key in tied.items():
        yield f"        tied(self, {key!r}, {first_key!r})"
    for key, array in writer.constants.items():
        yield f"        buffer(self, {key!r}, {array.shape!r}, torch.{array.dtype}{', persistent=False' if saved else ''})"
    yield ""
    yield f"    def forward(self, {', '.join(writer.fed)}):" if writer.fed else "    def forward(self):"
    if any(DEVICE in s.text for s in _all(writer.statements)):
        yield f"        device = {with_names(writer.device_source(), writer.names)}"
    yield from _lines(writer.statements, writer, "        ")
    yield f"        return {', '.join(with_names(r, writer.names).replace(DEVICE, 'device') for r in results)}"


def _registered(variable: Variable, key: str, learns: bool, persistent: bool) -> str:
    spec = variable.spec
    dtype = "bfloat16" if spec.known_dtype.name == "bf16" else spec.known_dtype.numpy_name
    dims = tuple(d if isinstance(d, int) else 0 for d in spec.known_dims)
    options = ("" if dtype == "float32" else f", torch.{dtype}") + ("" if persistent else ", persistent=False")
    return f"{'parameter' if learns else 'buffer'}(self, {key!r}, {dims!r}{options})"


def _lines(statements: Sequence[Statement], writer: PlainWriter, indent: str) -> Iterator[str]:
    scope = ""
    for statement in statements:
        if statement.scope and statement.scope != scope:
            yield ""
            yield f"{indent}# {printable(statement.scope)}"
        scope = statement.scope or scope
        if statement.bodies:
            for head, body in statement.bodies:
                yield f"{indent}{with_names(head, writer.names)}"
                yield from _lines(body, writer, f"{indent}    ") if body else [f"{indent}    pass"]
            continue
        text = with_names(statement.text, writer.names).replace(DEVICE, "device")
        if statement.targets:
            names = [writer.names.get(n, "_") for n in statement.targets]
            text = f"{', '.join(names)} = {text}"
        comment = f"  # {printable(statement.comment)}" if statement.comment else ""
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
    for place in range(len(line) - 1, -1, -1):
        if line[place] in ")]}":
            depth += 1
        elif line[place] in "([{":
            depth -= 1
            if depth == 0:
                start = place
                break
        elif line[place] == "," and depth == 1:
            cuts.append(place)
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
