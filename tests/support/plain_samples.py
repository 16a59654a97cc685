"""Operators' samples as modules of plain torch of one op each, with what they give here."""

from __future__ import annotations

import re
import warnings
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import numpy as np
import torch

from foreshape.core.spec import LOD_TENSOR
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import FormatError
from foreshape.interop.torch.plain_module import module_of
from foreshape.interop.torch.write.program_source import plain_source
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample
from foreshape.language.program import Program, program_guard
from foreshape.runtime.engine import Executor, Scope
from support.harness import build


def differences(cls: type[Operator], sample: Sample) -> str:
    """Write a sample, run both, and say how the results differ; empty if they don't. Raises `FormatError` if it has no torch code."""
    with program_guard(Program(), Program()):
        case = build(cls, sample.arguments)
        names = [n for s in cls.schema.results for n in case.outputs.get(s.name, ()) if case.block.vars[n].spec.kind is LOD_TENSOR]
        fed = [n for n in case.feed if any(n in op.input_names() for op in case.block.ops)]
        while True:
            try:
                source = plain_source(case.program, fed, names)
                break
            except FormatError as refused:
                absent = re.search(r"torch code: (\S+) has no value here", str(refused))
                if absent is None or absent[1] not in names or len(names) == 1:
                    raise
                names.remove(absent[1])
        operator = case.op.operator
        module = module_of(source).train(not getattr(operator, "is_test", True) or getattr(operator, "trainable_statistics", False))
        module.load_state_dict({k: torch.from_numpy(a.copy()) for k, a in source.constants.items()})
        given = [torch.from_numpy(np.array(v.data if isinstance(v, LoDTensor) else v)) for n in fed if (v := case.feed[n]) is not None]
        arguments: list[Any] = []
        for name, tensor in zip(fed, given, strict=True):
            arguments.append(tensor)
            value = case.feed[name]
            if isinstance(value, LoDTensor):
                arguments.append([level.clone() for level in value.offsets_on(None).levels])
        before = [t.clone() for t in given]
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            want = Executor("cpu").run(case.program, case.feed, names, Scope())
        try:
            got = module(*arguments)
        except (RuntimeError, IndexError, ValueError) as error:  # of torch, which refuses some sizes
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
        if not names:
            return ""
        moved = cls.schema.results and any(r.updates for r in cls.schema.results)  # the moving statistics of batch norm
        changed = [n for n, a, b in zip(fed, before, given, strict=True) if not moved and not torch.equal(a.nan_to_num(), b.nan_to_num())]
        told = [f"it changes its input {n}" for n in changed]
        exact = sample.exact and not cls.random
        for name, seen, wanted in zip(names, got if len(names) > 1 else (got,), want, strict=True):
            told += [f"{name}: {words}" for words in [_differ(seen, wanted, exact)] if words]
        return "; ".join(told)


def _differ(seen: Any, wanted: Any, exact: bool) -> str:
    if isinstance(seen, tuple):
        seen, offsets = seen
        levels = offsets if isinstance(offsets, list) else [offsets]
        given = wanted.offsets_on(None).levels if isinstance(wanted, LoDTensor) else []
        if len(levels) != len(given) or not all(map(torch.equal, levels, given)):
            return f"offsets {levels}, wanted {given}"
    wanted = np.asarray(wanted.data if isinstance(wanted, LoDTensor) else wanted)
    seen = seen.detach()
    if seen.dtype is torch.bfloat16:
        seen, wanted = seen.float(), wanted.astype("float32")
    seen = seen.numpy()
    if seen.dtype != wanted.dtype or seen.shape != wanted.shape:
        return f"{seen.dtype}{list(seen.shape)}, wanted {wanted.dtype}{list(wanted.shape)}"
    if not exact:
        return ""
    same = np.allclose(seen, wanted, 1e-5, 1e-6, equal_nan=True) if wanted.dtype.kind in "fc" else np.array_equal(seen, wanted)
    return "" if same else f"{seen.ravel()[:6]}, wanted {wanted.ravel()[:6]}"
