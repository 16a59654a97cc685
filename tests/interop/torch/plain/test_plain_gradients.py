"""Gradients of what is written as torch code: autograd's are those of the network it was written from."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from support.harness import build, of_each_operator, sampled
from support.some import each

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import LOD_TENSOR
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample

KINKS = {"atan2-1": "both operands are 0", "soft_relu-4": "at the threshold", "eigvalsh-2": "equal eigenvalues", "spectral_norm-2": "", "spectral_norm-3": ""}
TORCHS = (
    "a leaf Variable that requires grad is being used in an in-place operation",  # statistics, given as inputs here
    "is being modified inplace with grad mode enabled",  # likewise
    "The function 'native_batch_norm' is not differentiable with respect to argument 'running_",  # likewise
    "tensor does not have a device",  # a group norm of nothing
    "returned an invalid gradient at index 0 - got [0,",  # a pixel shuffle of nothing
)
"""Words of torch's own refusals of samples."""
CASES = [c for c in sampled() if not c[1].random and c[2].exact and not c[1].type.endswith("_grad") and c[1].type not in ("feed", "fetch", "print")]
OWN_GRADIENTS = ("cholesky_solve", "cvm", "data_norm", "deformable_conv", "deformable_conv_v1", "eigh", "elementwise_heaviside", "linear_chain_crf")
OWN_GRADIENTS += ("nanmedian", "put_along_axis", "sigmoid_focal_loss", "smooth_l1_loss", "spectral_norm", "teacher_student_sigmoid_loss", "warprnnt")
"""Operators whose gradients are not those of their kernels' own steps: the torch code must be such that autograd finds them."""
OWN = [c for c in CASES if c[1].type in OWN_GRADIENTS or "_quantize_dequantize_" in c[1].type]


def both(cls: type[Operator], sample: Sample) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]] | None:
    """Return the gradients by the network and by the torch code, of the results that have one; None where one of them refuses."""
    with fs.program_guard(fs.Program(), fs.Program()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        case = build(cls, sample.arguments)
        names = [n for s in cls.schema.results for n in case.outputs.get(s.name, ()) if case.block.vars[n].spec.kind is LOD_TENSOR]
        names = [n for n in names if case.block.vars[n].spec.known_dtype.is_floating]
        fed = [n for n in case.feed if any(n in op.input_names() for op in case.block.ops)]
        if any(isinstance(case.feed[n], LoDTensor) or case.feed[n] is None for n in fed):
            return None
        floats = tuple(n for n in fed if case.block.vars[n].spec.known_dtype.is_floating)
        train = not getattr(case.op.operator, "is_test", True)
        while names:
            try:
                nets = [fs.to_torch(case.program, fs.Scope(), feeds=fed, fetches=names, plain=plain).train(train) for plain in (False, True)]
                step = nets[0]._steps.step(train, floats, "cpu")
                break
            except fs.ForeshapeError as refused:
                through = re.search(r"through its result (\w+)", str(refused))
                if through is None:
                    return None
                names = [n for n in names if n not in case.outputs[through[1]]]
        else:
            return None
        found: list[Any] = []
        for net in nets:
            given = [torch.from_numpy(np.array(case.feed[n])).requires_grad_(n in floats) for n in fed]
            draws = torch.Generator().manual_seed(0)
            try:
                results = net(*given)
                loss: Any = 0.0
                for name, value in zip(names, results if len(names) > 1 else (results,), strict=True):
                    if name not in step.refused and isinstance(value, torch.Tensor) and value.requires_grad:
                        loss = loss + (value * torch.rand(value.shape, generator=draws, dtype=torch.float64).to(value.dtype)).sum()
                wanted = [x for x in given if x.requires_grad]
                found.append(torch.autograd.grad(loss, wanted, allow_unused=True) if isinstance(loss, torch.Tensor) else [None] * len(wanted))
            except (RuntimeError, AttributeError, fs.ForeshapeError) as error:
                known = not found or "is not written in torch code" in str(error) or any(words in str(error) for words in TORCHS)
                assert known, f"{cls.type}: the torch code alone has {error}"
                return None
    return found[0], found[1]


def compare(name: str, cls: type[Operator], sample: Sample) -> bool:
    found = both(cls, sample)
    if found is None or name in KINKS:
        return found is not None
    for ours, plain in zip(*found, strict=True):
        if ours is not None and plain is not None:
            close = 1e-3 if ours.dtype in (torch.float16, torch.bfloat16) else 1e-4
            torch.testing.assert_close(plain.to_dense(), ours.to_dense(), rtol=close, atol=1e-5, equal_nan=True, check_dtype=False)
    return True


@pytest.mark.quick_cases(one_in=3)
@of_each_operator(CASES, quick=24)
def test_gradients_are_those_of_the_operator(name: str, cls: type[Operator], sample: Sample) -> None:
    compare(name, cls, sample)


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("name", each(3, sorted({c[1].type for c in OWN})))
def test_operators_with_a_backward_pass_of_their_own_take_it_along(name: str) -> None:
    assert sum(compare(*case) for case in OWN if case[1].type == name)


def test_gradients_stop_where_the_program_stops_them() -> None:
    x, y = layer.data("x", ["batch", 3]), layer.data("y", ["batch", 4])
    h = layer.fc(x, 4)
    kept = layer.fc(x, 4)
    kept.stop_gradient = True
    loss = layer.mean(layer.sigmoid_cross_entropy_with_logits(layer.fc(kept, 4), layer.fc(h, 4)) + y)
    fs.Executor().run(fs.default_startup_program(), scope=(scope := fs.Scope()))
    seen: list[dict[str, Any]] = []
    for plain in (False, True):
        net = fs.to_torch(fs.default_main_program(), scope, fetches=loss, plain=plain)
        net(torch.ones(2, 3), torch.ones(2, 4)).backward()
        seen.append({n: None if p.grad is None else p.grad for n, p in net.named_parameters()})
    assert sum(g is None for g in seen[0].values()) == 6
    torch.testing.assert_close(seen[1], seen[0])
