"""Every operator's rejects, each run in PaddlePaddle as a program of one op: what of them it computes, to be judged by eye.

A line says what came of a reject: "describe" or "run" (refused there), "crashed", "missing" (no such operator), or "accepted", with the first numbers of each
result, and "unstable" where a second run made others.

``python tests/paddle/rejects.py --paddle PYTHON [--operators "kron cross"] [--keep FOLDER]``

Of 1,728 rejects then PaddlePaddle 2.6.2 accepts 233, and both versions 178. These are meaningful in both and still refused here: einsum `ii->i`; complex with
real numbers in elementwise_add and matmul_v2; circular pads beyond the dim and negative replicate pads of pad3d; quantize of bfloat16; training of
fake_quantize_range_abs_max; several elements of an array by slice. The others stay refused: an operand or attribute would be ignored in silence, the first
of several numbers taken, memory read outside of a tensor, state written in other dims, an axis given twice, a number out of its range, nothing computed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import support.harness as harness
from sides import attended, paddle_python

from foreshape.core.spec import LOD_RANK_TABLE, DType
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import SampleTensor

SIDE = Path(__file__).with_name("paddle_rejects.py")


def count_of(cls: type[Operator], slots: dict[str, Any], attrs: dict[str, Any]) -> int:
    """The number of results of an operator that gives many."""
    for name in ("num", "n"):
        if isinstance(attrs.get(name), int) and attrs[name] > 0:
            return min(int(attrs[name]), 8)
    if attrs.get("sections"):
        return len(attrs["sections"])
    lists = [v for v in slots.values() if isinstance(v, (list, tuple))]
    if lists:
        return len(lists[0]) or 1
    x = slots.get("X")
    axis = attrs.get("axis", 0)
    return x.dims[axis] if isinstance(x, SampleTensor) and isinstance(axis, int) and -len(x.dims) <= axis < len(x.dims) and x.dims[axis] else 2


def described(name: str, cls: type[Operator], arguments: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    rng = np.random.RandomState(7)
    slots, attrs = harness.split(cls, arguments)
    operands = {o.name: o for o in cls.schema.operands}
    given: dict[str, Any] = {}
    tables: dict[str, str] = {}
    inputs: dict[str, list[str]] = {}

    def kept(value: SampleTensor) -> dict[str, Any]:
        key = f"a{len(arrays)}"
        numbers = harness.array(value, rng)
        arrays[key] = numbers.view(np.uint16) if numbers.dtype.itemsize == 2 and numbers.dtype.kind == "V" else numbers
        return {"array": key, "lengths": [list(level) for level in value.lengths]}

    for slot, value in slots.items():
        if value is None:
            continue
        is_list = isinstance(value, (list, tuple))
        if LOD_RANK_TABLE in operands[slot].kinds and not is_list:
            given[f"{slot}.of"], tables[slot], inputs[slot] = kept(value), f"{slot}.of", [slot]
        elif is_list and not operands[slot].many:
            given[slot], inputs[slot] = [kept(v) for v in value if v is not None], [slot]
        elif is_list:
            inputs[slot] = [f"{slot}.{k}" for k in range(len(value))]
            given.update({f"{slot}.{k}": kept(v) for k, v in enumerate(value)})
        else:
            given[slot], inputs[slot] = kept(value), [slot]
    outputs: dict[str, list[str]] = {}
    for result in cls.schema.results:
        if result.updates in inputs:
            outputs[result.name] = inputs[result.updates]
        elif result.many:
            outputs[result.name] = [f"{result.name}_of.{k}" for k in range(count_of(cls, slots, attrs))]
        else:
            outputs[result.name] = [f"{result.name}_of"]
    attributes = {k: v.code if isinstance(v, DType) else v for k, v in attrs.items()}
    plain = {k: a.default for k, a in cls.schema.attributes.items()}
    defaults = {k: v.code if isinstance(v, DType) else v for k, v in plain.items() if isinstance(v, (bool, int, float, str, list, tuple, DType))}
    case = {"name": name, "type": cls.type, "attributes": attributes, "defaults": defaults}
    return case | {"inputs": inputs, "outputs": outputs, "given": given, "tables": tables}


def words_of(found: dict[str, Any]) -> str:
    """What came of one, in a line."""
    state = next(iter(found))
    if state != "accepted":
        return f"{state} {str(found[state])[:120]}"
    results = (f"{n} {v['dtype']}{v['dims']} {[float(f'{x:.3g}') for x in v['numbers'][:6]]}" if "dims" in v else f"{n} {v}" for n, v in found[state].items())
    return f"{state}{'' if found['same'] else ', unstable'}: {'; '.join(results)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paddle")
    parser.add_argument("--operators")
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    types = set(args.operators.split()) if args.operators else None
    with tempfile.TemporaryDirectory() as made:
        folder = args.keep or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, np.ndarray] = {}
        cases = [(n, c, r) for n, c, r in harness.rejected() if types is None or c.type in types]
        lines = [json.dumps(described(n, c, r.arguments, arrays), default=repr) for n, c, r in cases]
        (folder / "rejects.jsonl").write_text("\n".join(lines) + "\n")
        np.savez(folder / "arrays.npz", **arrays)
        (folder / "results.jsonl").unlink(missing_ok=True)
        found = attended([paddle_python(args.paddle), str(SIDE), str(folder)], folder / "results.jsonl", len(cases))
        (folder / "found.json").write_text(json.dumps(found, indent=1))
        for n, _, r in cases:
            print(f"{n} [{r.says}]: {words_of(found[n])}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
