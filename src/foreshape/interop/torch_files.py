"""Model files as torch code: a readable ``.py`` with its weights beside it, or a ``.pt2`` of torch.export."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from foreshape.core.gc_pause import collector_waits
from foreshape.errors import FormatError, border
from foreshape.interop.convert_models import same_file
from foreshape.interop.inference import columns
from foreshape.interop.onnx_files import opened_for_onnx
from foreshape.interop.parameters import Stored
from foreshape.interop.program_files import find_program
from foreshape.interop.tensors import write_tensors
from foreshape.language.program import Program
from foreshape.language.wire import replacing
from foreshape.runtime.engine import Scope

ENDINGS: Final = (".py", ".pt2")
_WEIGHTS: Final = ".safetensors"

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
def convert_to_torch(source: Path, target: Path, params: Path | None = None, *, check: bool = True) -> WrittenTorch:
    """Write a model (``.pdmodel``, PaddlePaddle 3's ``.json``, ``__model__``, an ``.onnx``) as torch code without a need of this package.

    Args:
        source, params: as for `convert_model`.
        target: NAME.py, a module of Python with a class ``Network`` and a function ``load``, and NAME.safetensors with its weights beside it; or
            NAME.pt2, the same exported by torch.export, with open sizes wherever it takes them.
        check: run the code beside the program before it is written, as `foreshape.to_torch` does.

    Raises:
        FormatError: operators without torch code (each is named, with the reason); a file cannot be read or written; torch.export refuses it; the code
            computes other numbers than the program.
    """
    path = os.fspath(target)
    if not path.endswith(ENDINGS):
        raise FormatError(f"{path}: torch code is written to a file that ends in .py or .pt2")
    model = find_program(source)[0]
    if same_file(model, path):
        raise FormatError(f"{path}: a model is not written to where it is read from")
    from foreshape.interop.torch.plain_module import module_of
    from foreshape.interop.torch.write.plain_source import PlainSource, tensors_of
    from foreshape.interop.torch.write.program_source import BY_MODE, plain_source
    from foreshape.interop.torch.written_check import WrittenNetwork, check_written
    from foreshape.transforms.passes import prune
    from foreshape.transforms.passes.for_training import mark_parameters

    full_program, values = opened_for_onnx(source, params)
    feeds, fetches = columns(full_program, "feed", outputs=True), columns(full_program, "fetch", outputs=False)
    program = prune(full_program, feeds, fetches)
    is_exported = path.endswith(ENDINGS[1])
    if not is_exported:
        program = BY_MODE(program.clone())[0]  # in training as before it was saved
        mark_parameters(program)
    name = re.sub(r"[^\w.-]", "_", os.path.basename(path))
    weights = name.removesuffix(ENDINGS[0]) + _WEIGHTS
    try:
        code = plain_source(program, feeds, fetches, f"The network of {os.path.basename(model)}.", weights)
    except FormatError as error:
        raise error.reworded(f"{model}: {error}") from error
    tensors = tensors_of(code, lambda name: _tensor(values[name]))
    scope = Scope()
    for name in values if check else ():
        scope.share(name, tensors[key] if (key := {n: k for k, n in code.keys.items()}.get(name)) is not None else _tensor(values[name]))
    if is_exported:
        from foreshape.interop.torch.exported_code import export_code

        fixed = export_code(path, program, feeds, fetches, tensors, scope if check else None)
        return WrittenTorch(path, "", code.ops, len(tensors), fixed)
    if check:

        def write(program: Program, fetches: Sequence[str]) -> tuple[Any, PlainSource]:
            source = plain_source(program, feeds, fetches)
            module = module_of(source)
            module.load_state_dict(tensors_of(source, scope.tensor))
            return module, source

        module = module_of(code)
        module.load_state_dict(tensors)
        try:
            check_written(WrittenNetwork(module, code, program, feeds, fetches, scope, write))
        except FormatError as error:
            raise error.reworded(f"{model}: {error}") from error
    beside = os.path.join(os.path.dirname(path), weights)
    if tensors:
        write_tensors(beside, tensors)
    with replacing(path) as file:
        file.write(code.text.encode())
    return WrittenTorch(path, beside if tensors else "", code.ops, len(tensors))


def _tensor(value: Stored) -> Any:
    from foreshape.core.values.conversion import to_tensor
    from foreshape.core.values.torch_types import torch_dtype

    return to_tensor(value.numbers()).to(torch_dtype(value.dtype)).clone()
