"""Model files as torch code: a readable ``.py`` with its weights beside it, or a ``.pt2`` of torch.export."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from foreshape.dims import symbols_of
from foreshape.errors import FormatError, border
from foreshape.interop.convert_models import same_file
from foreshape.interop.inference import columns
from foreshape.interop.onnx_comparison import comparison_sizes, drawn_feed
from foreshape.interop.onnx_files import opened_for_onnx
from foreshape.interop.parameters import Stored
from foreshape.interop.program_files import find_program
from foreshape.interop.tensors import write_tensors
from foreshape.program import Program
from foreshape.program.gc_pause import collector_waits
from foreshape.wire import replacing

ENDINGS: Final = (".py", ".pt2")
_WEIGHTS: Final = ".safetensors"
_CLOSE: Final = 1e-4
"""The greatest difference of an exported program from its module, as a part of the largest number."""

Path = str | os.PathLike[str]


class WrittenTorch(NamedTuple):
    """A network written as torch code.

    Attributes:
        path: the written file.
        weights: the file of its weights; empty for a ``.pt2``, or without weights.
        ops: the number of the program's ops.
        tensors: the number of its parameters and buffers.
        fixed: of a ``.pt2``, the open sizes of inputs kept at a number by torch.export, as ``width = 96``.
    """

    path: str
    weights: str
    ops: int
    tensors: int
    fixed: tuple[str, ...] = ()


@border("the model cannot be converted", FormatError)
@collector_waits
def convert_to_torch(source: Path, target: Path, params: Path | None = None) -> WrittenTorch:
    """Write a model (``.pdmodel``, PaddlePaddle 3's ``.json``, ``__model__``, an ``.onnx``) as torch code without a need of this package.

    Args:
        source, params: as for `convert_model`.
        target: NAME.py, a module of Python with a class ``Network`` and a function ``load``, and NAME.safetensors with its weights beside it; or
            NAME.pt2, the same exported by torch.export, with open sizes wherever it takes them.

    Raises:
        FormatError: operators without torch code (each is named, with the reason); a file cannot be read or written; torch.export refuses it.
    """
    path = os.fspath(target)
    if not path.endswith(ENDINGS):
        raise FormatError(f"{path}: torch code is written to a file that ends in .py or .pt2")
    model = find_program(source)[0]
    if same_file(model, path):
        raise FormatError(f"{path}: a model is not written to where it is read from")
    from foreshape.interop.torch.plain_module import module_of
    from foreshape.interop.torch.write import plain_source
    from foreshape.interop.torch.write.plain_source import tensors_of
    from foreshape.passes import prune

    whole, values = opened_for_onnx(source, params)
    feeds, fetches = columns(whole, "feed", outputs=True), columns(whole, "fetch", outputs=False)
    program = prune(whole, feeds, fetches)
    name = re.sub(r"[^\w.-]", "_", os.path.basename(path))
    weights = name.removesuffix(ENDINGS[0]) + _WEIGHTS
    try:
        made = plain_source(program, feeds, fetches, f"The network of {os.path.basename(model)}.", weights)
    except FormatError as error:
        raise error.reworded(f"{model}: {error}") from error
    tensors = tensors_of(made, lambda name: _tensor(values[name]))
    if path.endswith(ENDINGS[1]):
        module = module_of(made)
        module.load_state_dict(tensors)
        fixed = _export(path, module.eval(), program, feeds)
        return WrittenTorch(path, "", made.ops, len(tensors), fixed)
    beside = os.path.join(os.path.dirname(path), weights)
    if tensors:
        write_tensors(beside, tensors)
    with replacing(path) as file:
        file.write(made.text.encode())
    return WrittenTorch(path, beside if tensors else "", made.ops, len(tensors))


def _tensor(value: Stored) -> Any:
    from foreshape.values.conversion import to_tensor
    from foreshape.values.torch_types import torch_dtype

    return to_tensor(value.numbers()).to(torch_dtype(value.dtype)).clone()


# --- torch.export


def _export(path: str, module: Any, program: Program, feeds: Sequence[str]) -> tuple[str, ...]:
    """Write a module by torch.export, with as many open sizes as it takes, and return the others."""
    import torch

    block = program.global_block
    specs = {name: block.vars[name].spec.known_dims for name in feeds}
    example = [*comparison_sizes(program, feeds)][-1] if feeds else {}
    wished = {n: [d if isinstance(d, int) else 1 if at == 0 else 2 * example[n][at] for at, d in enumerate(dims)] for n, dims in specs.items()}
    other = (program.feeds.nearest(wished) if wished else None) or example
    opened = {name: [axis for axis, d in enumerate(dims) if not isinstance(d, int)] for name, dims in specs.items()}
    first = {name: [axis for axis in axes if axis == 0] for name, axes in opened.items()}
    told: list[str] = []
    none: dict[str, list[int]] = {name: [] for name in feeds}
    for axes in (opened, first, none):
        try:
            found = _exported(module, program, feeds, example, axes)
            _check(found, module, program, feeds, {n: [other[n][at] if at in axes[n] else d for at, d in enumerate(example[n])] for n in feeds})
        except Exception as error:  # torch.export's own, of any class
            told.append(str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__)
            continue
        with replacing(path) as file:
            torch.export.save(found, file)
        return tuple([f"{specs[n][at]} = {example[n][at]}" for n in feeds for at in opened[n] if at not in axes[n]])
    raise FormatError(f"torch.export refuses it{_numbers_decide(program, feeds)}: {told[-1]}; write a .py")


def _numbers_decide(program: Program, feeds: Sequence[str]) -> str:
    """Return in words the operators whose numbers decide on the way or on sizes, as torch.export takes neither."""
    known = {n for name in feeds for d in program.global_block.vars[name].spec.known_dims for n in symbols_of(d)}
    found: dict[str, None] = {}
    for op in program.all_ops():
        if op.sub_block_indices():
            found[op.type] = None
        else:
            dims = [d for name in op.output_names() if (v := op.block.find(name)) is not None for d in v.spec.dims or ()]
            news = {n for d in dims for n in symbols_of(d)} - known
            if news:
                found[op.type] = None
                known |= news
    return f" (numbers decide on its way or its sizes, in {', '.join(found)})" if found else ""


def _exported(module: Any, program: Program, feeds: Sequence[str], sizes: Mapping[str, Sequence[int]], axes: Mapping[str, Sequence[int]]) -> Any:
    import torch

    dynamic = tuple(dict.fromkeys(axes[name], torch.export.Dim.DYNAMIC) for name in feeds)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own code
        return torch.export.export(module, _inputs(program, feeds, sizes, 0), dynamic_shapes=dynamic if feeds else None)


def _inputs(program: Program, feeds: Sequence[str], sizes: Mapping[str, Sequence[int]], seed: int) -> tuple[Any, ...]:
    from foreshape.interop.torch.untyped_torch import torch

    drawn = drawn_feed(program, sizes, seed)
    return tuple([torch.from_numpy(drawn[name]) for name in feeds])


def _check(found: Any, module: Any, program: Program, feeds: Sequence[str], sizes: Mapping[str, Sequence[int]]) -> None:
    """Refuse an exported program with other results than the module, at other sizes."""
    import torch

    given = _inputs(program, feeds, sizes, 1)
    with torch.inference_mode():
        wanted, seen = _flat(module(*given)), _flat(found.module()(*given))
    for a, b in zip(wanted, seen, strict=True):
        least = max(float(a.abs().max()) if a.numel() else 0.0, 1e-3)
        if a.shape != b.shape or not torch.allclose(a.double(), b.double(), _CLOSE, _CLOSE * least, equal_nan=True):
            raise FormatError("the exported program gives other results at other sizes")


def _flat(results: Any) -> list[Any]:
    from foreshape.interop.torch.untyped_torch import is_list

    return [one for part in results for one in _flat(part)] if is_list(results) else [results]
