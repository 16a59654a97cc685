"""Forecasts of training setups, for a comparison with a GPU: ``python benchmarks/forecast.py SETUPS --out forecasts.json``.

SETUPS is a list in JSON: each setup has a network of ``models.py`` beside it, an optimizer, a precision and a plan of batches. ``lengths.py`` beside it, if
it is there, has runs over lists of lengths. The file that is written maps a setup's id to its peaks in bytes: ``allocated``, ``reserved``, ``safe``,
``steps``, ``largest`` for setups with a limit; of lists of lengths ``peaks``, and ``dies`` at the limits of ``--measured``. With ``--baseline`` each
difference above 3 % is printed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from foreshape.apps.forecast.caching_allocator import AllocatorConfig, CachingAllocator
from foreshape.apps.forecast.cards import card_of
from foreshape.apps.forecast.forecasting import modelled
from foreshape.apps.forecast.parallel import parallel_settings
from foreshape.apps.forecast.run_model import HIGH
from foreshape.apps.forecast.safe_figures import largest_batch, safe_bytes
from foreshape.apps.forecast.traced_step import Settings

KINDS = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION", "composed": "MATH"}
"""Kernels of attention that a setup asks for on a GPU."""


class Chosen(torch.nn.Module):
    """A network within a choice of attention's kernel."""

    def __init__(self, network: torch.nn.Module, kind: str) -> None:
        super().__init__()
        self.network, self.backend = network, getattr(torch.nn.attention.SDPBackend, KINDS[kind])

    def forward(self, *inputs: Any) -> Any:
        with torch.nn.attention.sdpa_kernel(self.backend):
            return self.network(*inputs)


def settings_of(models: Any, setup: Mapping[str, Any], device: str) -> Settings:
    """Return the settings of a forecast for a setup."""

    def network() -> Any:
        net = models.build(setup, "cpu").train()
        kind = setup["args"].get("kind")
        return Chosen(net, kind) if kind in KINDS and device != "cpu" else net

    def example(batch: int, length: int | None) -> Any:
        inputs, target = models.batch(setup, batch, length)
        if setup.get("channels_last"):
            inputs = (inputs[0].to(memory_format=torch.channels_last), *inputs[1:])
        return inputs, target

    wrapper = setup.get("wrapper")
    return Settings(
        network,
        example,
        lambda outputs, target: models.loss_of(setup, outputs, target),
        lambda parameters: models.optimizer_of(setup, parameters),
        card_of(device) if device != "cpu" else None,
        setup["precision"].replace("_", "-"),
        False,
        setup.get("accumulate", 1),
        setup.get("zero", "start"),
        bool(setup.get("clip")),
        bool(setup.get("inline")),
        parallel_settings({"gradient_as_bucket_view": wrapper == "ddp_view"} if wrapper in ("ddp", "ddp_view") else None, 1 if wrapper == "fsdp2" else None),
    )


def forecast(models: Any, setup: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return the forecast of a setup."""
    plan = [(int(rows), int(columns or 0)) for rows, columns in setup["plan"]]
    config = AllocatorConfig.parse(setup.get("alloc", ""))
    model = modelled(settings_of(models, setup, device), plan, "largest" in setup or len(set(plan)) > 1)
    result = model.run(plan, CachingAllocator(config))
    high = model.run(plan, CachingAllocator(config), HIGH).reserved
    out: dict[str, Any] = {"allocated": result.allocated, "reserved": result.reserved, "safe": safe_bytes(result.reserved, high, card_of(device)), "high": high}
    out["steps"] = [[step.allocated, step.reserved] for step in result.steps]
    if "largest" in setup:
        capacity = setup["largest"]["cap_mib"] << 20
        out["largest"] = largest_batch(model, plan[0][1], lambda limit: CachingAllocator(config._replace(capacity=limit)), capacity)
    return out


def forecast_lengths(models: Any, lengths: Any, name: str, device: str, limits: Sequence[int]) -> dict[str, Any]:
    """Return the peaks of each batch of a list of lengths, and the batch that dies at each limit."""
    setup, plan = lengths.case(name)
    config = AllocatorConfig.parse(setup.get("alloc", ""))
    model = modelled(settings_of(models, setup, device), plan, True)
    peaks = [[step.allocated, step.reserved] for step in model.run(plan, CachingAllocator(config)).steps]
    dies = {str(limit): model.run(plan, CachingAllocator(config._replace(capacity=limit))).died for limit in limits}
    return {"peaks": peaks, "dies": dies}


@contextlib.contextmanager
def told(name: str) -> Iterator[Callable[[str], None]]:
    """Print a line with the time that the block took on the processor."""
    words: list[str] = []
    began = time.process_time()
    yield words.append
    print(f"{name:32}{time.process_time() - began:6.1f} s  {' '.join(words)}", file=sys.stderr, flush=True)


def main() -> None:
    """Write the forecasts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("setups", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="H200")
    parser.add_argument("--only", default="", help="a part of the ids")
    parser.add_argument("--baseline", type=Path, help="other forecasts to compare with")
    parser.add_argument("--measured", type=Path, help="a measurement, whose limits of lists of lengths are answered")
    given = parser.parse_args()
    sys.path.insert(0, str(given.setups.resolve().parent))
    models = importlib.import_module("models")
    baseline = json.loads(given.baseline.read_text()) if given.baseline else {}
    measured = json.loads(given.measured.read_text())["results"] if given.measured else []
    limits = {row["id"]: [limit["cap"] for limit in row.get("limits", [])] for row in measured if row.get("kind") == "lengths"}
    forecasts: dict[str, Any] = json.loads(given.out.read_text()) if given.only and given.out.exists() else {}
    for setup in json.loads(given.setups.read_text()):
        if given.only in setup["id"]:
            with told(setup["id"]) as say:
                found = forecasts[setup["id"]] = forecast(models, setup, given.device)
                say(f"{found['allocated'] / 2**30:7.3f} {found['reserved'] / 2**30:7.3f} GiB")
                if "largest" in found:
                    say(f"largest {found['largest']}")
                for key in ("allocated", "reserved"):
                    before = baseline.get(setup["id"], {}).get(key)
                    if before and abs(found[key] / before - 1) > 0.03:
                        say(f"{key} {found[key] / before - 1:+.1%}")
    if (given.setups.resolve().parent / "lengths.py").exists():
        lengths = importlib.import_module("lengths")
        for name in lengths.CASES:
            key = f"lengths_{name}"
            if given.only in key:
                with told(key) as say:
                    forecasts[key] = forecast_lengths(models, lengths, name, given.device, limits.get(key, []))
                    say(f"{max(peak[0] for peak in forecasts[key]['peaks']) / 2**30:7.3f} {max(peak[1] for peak in forecasts[key]['peaks']) / 2**30:7.3f} GiB")
    given.out.write_text(json.dumps(forecasts))


if __name__ == "__main__":
    main()
