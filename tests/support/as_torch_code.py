"""Networks of files beside the modules of torch made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import foreshape as fs
from foreshape.interop.onnx_comparison import comparison_sizes, drawn_feed

LENGTHS = [2, 0, 3]
"""Of ragged inputs."""


def drawn(model: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the inputs of a network, as its run takes them and as a module does."""
    block = model.program.global_block
    specs = {name: block.var(name).spec for name in model.feeds}
    ragged = [name for name, spec in specs.items() if spec.lod is not None]
    if not ragged:
        feed = drawn_feed(model.program, [*comparison_sizes(model.program, model.feeds)][-1], 0)
        return feed, [torch.from_numpy(value) for value in feed.values()]
    sizes = {n: [d if isinstance(d, int) else sum(LENGTHS) if n in ragged else len(LENGTHS) for d in spec.known_dims] for n, spec in specs.items()}
    feed = drawn_feed(model.program, sizes, 0)
    offsets = torch.tensor(np.cumsum([0, *LENGTHS]))
    given = [(torch.from_numpy(value), [offsets]) if name in ragged else torch.from_numpy(value) for name, value in feed.items()]
    return {name: fs.LoDTensor(value, [LENGTHS]) if name in ragged else value for name, value in feed.items()}, given


def check_as_torch(path: str | Path, within: float = 1e-5) -> None:
    """Compare a saved network with its module, and with its torch code."""
    model = fs.load_inference_model(str(path).removesuffix(".pdmodel"), scope=fs.Scope())
    feed, given = drawn(model)
    wanted = fs.Executor().run(model.program, feed, model.fetches, model.scope)
    for plain in (False, True):
        module = fs.to_torch(model, plain=plain).eval()
        with torch.no_grad():
            found = module(*([part for one in given for part in (one if isinstance(one, tuple) else (one,))] if plain else given))
        results = list(found) if isinstance(found, (tuple, list)) and len(wanted) > 1 else [found]
        for name, seen, want in zip(model.fetches, results, wanted, strict=True):
            seen = seen[0] if isinstance(seen, (tuple, list)) else seen
            want = np.asarray(getattr(want, "data", want))
            np.testing.assert_allclose(
                np.asarray(seen), want, rtol=within, atol=within * max(np.abs(want).max(initial=0), 1e-3), err_msg=f"{path} {name} {plain=}"
            )
