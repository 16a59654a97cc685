"""Forecasts beside real runs of eager torch on the processor: ``python benchmarks/forecast_on_processor.py SETUPS [--only PART] [--out FILE]``.

SETUPS and the ``models.py`` beside it are those of ``benchmarks/forecast.py``. Batches, lengths, images and depths are cut on both sides to what a processor
runs in seconds. Measured are the bytes of live storages of tensors, at every operator of three steps; memory that kernels take for themselves is left out on
both sides. Printed are the relative errors of the peak, their median and the share within 5 and 10 %.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import sys
import time
import weakref
from pathlib import Path
from statistics import median
from typing import Any

import torch
from forecast import settings_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from foreshape.apps.forecast.caching_allocator import PlainMemory
from foreshape.apps.forecast.run_model import RunModel
from foreshape.apps.forecast.traced_step import trace

MOST = {"layers": 3, "rows": 20_000}
"""Cuts of networks."""


class LiveBytes(TorchDispatchMode):
    """The bytes of storages of operators' results while somebody holds them."""

    def __init__(self) -> None:
        super().__init__()
        self.alive = self.most = 0
        self.seen: dict[int, Any] = {}

    def count(self, tensor: torch.Tensor) -> None:
        parts = [tensor._indices(), tensor._values()] if tensor.is_sparse else [tensor]
        for part in parts:
            storage = part.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if key in self.seen:
                continue

            def drop(_: Any, key: int = key, size: int = size) -> None:
                del self.seen[key]
                self.alive -= size

            self.seen[key] = weakref.ref(storage, drop)
            self.alive += size
            self.most = max(self.most, self.alive)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor):
                self.count(value)
        return out


def cut(setup: dict[str, Any]) -> dict[str, Any]:
    """Return a setup that a processor runs in seconds."""
    args = {name: min(value, MOST[name]) if name in MOST else value for name, value in setup["args"].items()}
    out = {**setup, "args": args, "precision": "amp_bf16" if setup["precision"] == "amp_fp16" else setup["precision"]}
    if "widths" in args:
        args["widths"] = [min(width, 2048) for width in args["widths"]]
    out.pop("wrapper", None)
    if "length" in setup:
        out["length"] = min(setup["length"], 512 if setup["model"] == "waves" else 128)
    if "side" in setup and setup["model"] != "vit":
        out["side"] = min(setup["side"], 64)
    rows = min(setup["plan"][0][0], 256 if setup["model"] in ("mlp", "tables", "graph") else 4)
    length = setup["plan"][0][1]
    out["plan"] = [[rows, min(length, 128) if length else None]] * 3
    return out


def measured(models: Any, setup: dict[str, Any]) -> int:
    """Return the most bytes of live storages in a real run."""
    gc.collect()
    with LiveBytes() as meter:
        models.train(setup, "cpu", [tuple(pair) for pair in setup["plan"]])
    return meter.most


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
        model = RunModel(trace(settings_of(models, setup, "cpu"), [(rows, length or None) for rows, length in sizes]), sizes)
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
