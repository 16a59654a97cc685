"""Forecasts beside real runs of eager torch on the processor: ``python benchmarks/forecast_on_processor.py SETUPS [--only PART] [--out FILE]``.

SETUPS and the ``models.py`` beside it are those of ``benchmarks/forecast.py``. Batches, lengths, images, depths and widths are cut on both sides to what a
processor runs in seconds, so that activations are still most of the memory. Measured is what torch's allocator of the processor has handed out at most,
temporary memory of its kernels with it. Printed are the relative errors of the peak, their median and the share within 5 and 10 %.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import sys
import time
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

from forecast import settings_of
from torch.profiler import ProfilerActivity, profile

from foreshape.apps.forecast.caching_allocator import PlainMemory
from foreshape.apps.forecast.forecasting import modelled

MOST = {"layers": 3, "rows": 20_000, "vocabulary": 4096}
"""Cuts of networks."""
TEXTS = ("gpt", "llama", "bert")
NARROW = {"width": 4, "inner": 4}
"""Divisors of the widths of transformers, so that a cut batch still takes more bytes than the optimizer."""


def cut(setup: dict[str, Any]) -> dict[str, Any]:
    """Return a setup that a processor runs in seconds."""
    model = setup["model"]
    args = {**({"vocabulary": MOST["vocabulary"]} if model in TEXTS else {"width": 32} if model == "resnet" else {}), **setup["args"]}
    args = {name: min(value, MOST[name]) if name in MOST else value for name, value in args.items()}
    if model in (*TEXTS, "vit"):
        args = {name: value // NARROW.get(name, 1) if isinstance(value, int) and not isinstance(value, bool) else value for name, value in args.items()}
    if "widths" in args:
        args["widths"] = [min(width, 512) for width in args["widths"]]
    out = {**setup, "args": args, "precision": "amp_bf16" if setup["precision"] == "amp_fp16" else setup["precision"]}
    out.pop("wrapper", None)
    if "length" in setup:
        out["length"] = min(setup["length"], 512 if model == "waves" else 256)
    if "side" in setup and model != "vit":
        out["side"] = min(setup["side"], 32 if args.get("axes") == 3 else 96)
    rows, length = (max(pair[axis] or 1 for pair in setup["plan"]) for axis in (0, 1))
    most = min(rows, 2048 if model in ("mlp", "tables", "graph") else 8)
    out["plan"] = [[max(1, pair[0] * most // rows), pair[1] and pair[1] * min(length, 256) // length] for pair in setup["plan"]]
    return out


def measured(models: Any, setup: dict[str, Any]) -> int:
    """Return the most bytes of torch's allocator in a real run, by its profiler's record of each allocation."""
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        models.train(setup, "cpu", [tuple(pair) for pair in setup["plan"]])
    events: list[Any] = record.profiler.kineto_results.events()
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


def main() -> None:
    """Print the errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("setups", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    sys.path.insert(0, str(given.setups.resolve().parent))
    models = importlib.import_module("models")
    errors: dict[str, float] = {}
    for setup in json.loads(given.setups.read_text()):
        if given.only not in setup["id"]:
            continue
        setup = cut(setup)
        began = time.process_time()
        sizes = [(rows, length or 0) for rows, length in setup["plan"]]
        model = modelled(settings_of(models, setup, "cpu"), sizes, len(set(sizes)) > 1)
        expected = model.run(sizes, PlainMemory()).allocated
        real = measured(models, setup)
        errors[setup["id"]] = expected / real - 1
        print(f"{setup['id']:32}{expected / 2**20:10.1f} {real / 2**20:10.1f} MiB {expected / real - 1:+7.2%} {time.process_time() - began:6.1f} s", flush=True)
    sizes_of_errors = sorted(map(abs, errors.values()))
    within = [sum(error <= limit for error in sizes_of_errors) / len(sizes_of_errors) for limit in (0.05, 0.10)]
    print(
        f"{len(errors)} setups: median {median(sizes_of_errors):.2%}, within 5 % {within[0]:.0%}, within 10 % {within[1]:.0%}, worst {sizes_of_errors[-1]:.2%}"
    )
    if given.out is not None:
        given.out.write_text(json.dumps(errors, indent=1))


if __name__ == "__main__":
    main()
