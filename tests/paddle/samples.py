"""Every operator's samples, each run here and in PaddlePaddle as a program of one op, and its gradient after it.

``python tests/paddle/samples.py --paddle PYTHON [--operators "kron cross"] [--no-gradients] [--brief] [--keep FOLDER]``
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import support.harness as harness
from known import reason
from results import grouped, keep
from sides import Outcome, TwoSided, compute, outcome, paddle_python, run_here, run_there, write

import foreshape.language.wire  # noqa: F401  the codec
from foreshape.core.spec import FP32, LOD_TENSOR, LOD_TENSOR_ARRAY, TENSOR_KINDS, Spec, tensor
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.language.operator.fields import Gradient, NoGradient
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample
from foreshape.language.program import Program, program_guard
from foreshape.language.program.op import EMPTY
from foreshape.transforms.backward import append_backward

APART = {
    "feed": "in every saved pair of the programs that are described here",
    "fetch": "in every saved pair of the programs that are described here",
}
"""Operators that are no program by themselves, and where they are compared."""
FAMILIES_APART = {"collective": "they compute with several processes: not compared"}


def apart(cls: type[Operator]) -> str | None:
    """Why an operator's samples are not compared, or None where they are."""
    if not cls.samples:
        return "it runs a block: in the loops and branches of the programs that are described here"
    return APART.get(cls.type) or FAMILIES_APART.get(cls.__module__.removeprefix("foreshape.language.ops.").split(".")[0])


MUST_BE_NAMED = {"rmsprop": ("MeanGradOut",)}
"""Results that an op has to name there even where they are not made, as `foreshape.optimizer` does."""
WORKED_IN = {
    "lstsq": ("Rank", "SingularValues"),
    "fused_transpose": ("XShape",),
    "fusion_gru": ("ReorderedH0", "XX", "BatchedInput", "BatchedOut"),
    "fusion_lstm": ("XX", "BatchedInput", "BatchedHidden", "BatchedCell", "ReorderedH0", "ReorderedC0", "CheckedCell"),
    "fusion_repeated_fc_relu": ("ReluOut",),
    "fusion_seqconv_eltadd_relu": ("ColMat",),
    "fusion_seqexpand_concat_fc": ("FCOut",),
    "fusion_squared_mat_sub": ("SquaredX", "SquaredY", "SquaredXY"),
}
"""Results that a kernel there works in and that are not made here: each has to be a variable of the program."""
BY_ONEDNN = ("fused_conv2d", "fused_conv3d")
"""Operators whose results stand in an order of oneDNN's own till they are fetched."""
ASKED_OF_ONEDNN = ("dequantize", "fused_elementwise_add", "fused_elementwise_div", "fused_elementwise_mul", "fused_elementwise_sub", "fused_matmul",
                   "fused_softplus", "fused_transpose", "quantize", "requantize")  # fmt: skip
"""Those that have no kernel there but oneDNN's, and say so."""
NOTHING_FLOWS = {"cross_entropy2": ("MatchX", "XShape")}
"""Results without a gradient, of operators whose gradient is made of others."""


def of_sample(cls: type[Operator], sample: Sample, name: str) -> TwoSided:
    """The program of one op that a sample is."""
    asked = {"use_mkldnn": True} if cls.type in ASKED_OF_ONEDNN else {}
    case = harness.build(cls, {**sample.arguments, **asked}, as_layers=True)
    case.op.output_slots.update({slot: (EMPTY,) for slot in MUST_BE_NAMED.get(cls.type, ()) if not case.outputs.get(slot)})
    for slot in (s for s in WORKED_IN.get(cls.type, ()) if not any(n in case.block.vars for n in case.outputs.get(s, ()))):
        count = len(case.inputs["W"]) - 1 if slot == "ReluOut" else 1
        case.op.output_slots[slot] = tuple(case.block.create_variable(f"{slot}.{k}", tensor(FP32)).name for k in range(count))
    wanted = list(dict.fromkeys(n for names in case.outputs.values() for n in names if n in case.block.vars and case.block.vars[n].kind in TENSOR_KINDS))
    known, told = reason(cls.type, sample.arguments) or "", {"fetched": wanted} if cls.type in (*BY_ONEDNN, *ASKED_OF_ONEDNN) else {}
    return TwoSided(name, cls.type, case.program, case.feed, wanted, sample.exact and not cls.random, known, told=told)


def of_gradients(cls: type[Operator], sample: Sample, name: str) -> Iterator[TwoSided]:
    """The programs that follow the op by its gradient: one for each result."""
    probe = harness.build(cls, sample.arguments)
    for slot, names in probe.outputs.items():
        if isinstance(cls.gradient, Gradient) and f"{slot}@GRAD" not in cls.gradient.inputs:
            continue
        for position, out_name in enumerate(names):
            if out_name not in probe.block.vars or slot in NOTHING_FLOWS.get(cls.type, ()):
                continue
            case = harness.build(cls, sample.arguments, as_layers=True)
            out = case.block.vars[out_name]
            floating = [n for n, a in case.feed.items() if np.asarray(a).dtype.kind in "fc"]
            if out.dtype is None or not (out.dtype.is_floating or out.dtype.is_complex):
                continue
            if out.kind is LOD_TENSOR_ARRAY or not floating or out.spec.dims is None:
                continue
            value = compute(case.program, case.feed, [out_name])[out_name]
            rng = np.random.RandomState(3)
            numbers = rng.standard_normal(np.shape(value))
            numbers = (numbers + 1j * rng.standard_normal(np.shape(value)) if out.dtype.is_complex else numbers).astype(np.asarray(value).dtype)
            weight = LoDTensor(numbers, value.sequence_lengths) if isinstance(value, LoDTensor) else numbers
            spec = out.spec.like() if out_name in names else Spec(LOD_TENSOR, out.dtype, np.shape(value))
            fed = case.block.create_variable("out_gradient", spec, need_check_feed=True)
            for n in floating:
                case.block.vars[n].stop_gradient = False
            try:
                pairs = append_backward(out, list(floating), loss_gradient=fed)
            except Exception as error:
                if "nothing is to be trained" in str(error):
                    continue
                raise
            if pairs:
                wanted, feed = [g.name for _, g in pairs], case.feed | {"out_gradient": weight}
                of = f"{cls.type}_grad"
                known = reason(of, sample.arguments) or reason(cls.type, sample.arguments) or ""
                yield TwoSided(f"{name}-gradient-{slot}.{position}", of, case.program, feed, wanted, not cls.random, known)


def cases(types: set[str] | None, gradients: bool) -> list[TwoSided]:
    """The programs of all operators, or of those named, each computed on this side."""
    out: list[TwoSided] = []
    for name, cls, sample in harness.sampled():
        if apart(cls) or (types is not None and cls.type not in types):
            continue
        with program_guard(Program(), Program()):
            try:
                out.append(of_sample(cls, sample, name))
                if gradients and sample.exact and sample.differentiate and not isinstance(cls.gradient, NoGradient):
                    out.extend(of_gradients(cls, sample, name))
            except Exception as error:  # a sample that cannot be described, saved or differentiated here
                failed = TwoSided(f"{name}-described", cls.type, Program(), {}, [])
                failed.error = f"{type(error).__name__}: {error}"[:400]
                out.append(failed)
    for case in out:
        if not case.error:
            run_here(case)
    return out


def compare(python: str, types: set[str] | None = None, gradients: bool = True, folder: Path | None = None) -> list[Outcome]:
    """What came of the samples of all operators, or of those named."""
    with tempfile.TemporaryDirectory() as made:
        place = folder or Path(made)
        place.mkdir(parents=True, exist_ok=True)
        both = cases(types, gradients)
        write(both, place)
        there = run_there(python, place)
        return [outcome(case, there[case.name], place) for case in both]


def table(outcomes: list[Outcome], details: bool) -> str:
    """A line for each operator, and under it what was not equal."""
    groups: dict[str, list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault(one.of, []).append(one)
    lines = [f"{'operator':36} {'equal':>9}  {'error':>7}  remarks"]
    for of, found in groups.items():
        equal = [o for o in found if o.state == "equal"]
        others = [o for o in found if o.state != "equal"]
        counts = {s: sum(o.state == s for o in others) for s in ("differs", "failed", "known", "refused", "missing")}
        states = ", ".join(f"{n} {s}" for s, n in counts.items() if n)
        worst = f"{max(o.error for o in equal):.0e}" if equal else ""
        lines.append(f"{of:36} {len(equal):>3} of {len(found):<3} {worst:>7}  {states}")
        alike: dict[str, list[str]] = {}
        for o in others if details else ():
            alike.setdefault(f"{o.state}: {o.words}", []).append(o.name.removeprefix(of.removesuffix("_grad") + "-"))
        lines += [f"    {', '.join(names[:6])}{' ...' if len(names) > 6 else ''}: {words}" for words, names in alike.items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paddle", help="a Python that has PaddlePaddle 2.6.2; else PADDLE_PYTHON")
    parser.add_argument("--operators", help="types of operators, divided by spaces; else all")
    parser.add_argument("--no-gradients", action="store_true", help="leave the gradients out")
    parser.add_argument("--brief", action="store_true", help="the table alone, without what differs in words")
    parser.add_argument("--keep", type=Path, help="a folder in which programs and arrays are left")
    parser.add_argument("--update", action="store_true", help="keep what came of it for docs/compatibility.md")
    given = parser.parse_args()
    types = set(given.operators.split()) if given.operators else None
    known = {c.type for c in harness.operators()}
    if types is not None and types - known:
        raise SystemExit(f"no such operator: {', '.join(sorted(types - known))}")
    found = compare(paddle_python(given.paddle), types, not given.no_gradients, given.keep)
    print(table(found, not given.brief))
    if given.update:
        keep("operators", grouped(found, lambda o: o.of), types is None)
    return int(any(o.state in ("differs", "failed") for o in found))


if __name__ == "__main__":
    sys.exit(main())
