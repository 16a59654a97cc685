"""Networks of files beside the modules of torch made of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import foreshape as fs
from foreshape.interop.onnx_comparison import comparison_sizes, drawn_feed
from foreshape.transforms.passes import prune

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


def check_page(found: dict[str, Any], folder: str | Path) -> list[str]:
    """Compare the networks that a page's code leaves as modules and as torch code: every result with a name there; return these names."""
    checked: list[str] = []
    programs: dict[int, list[fs.Variable]] = {}
    for value in found.values():
        if isinstance(value, fs.Variable) and value.op is not None and value.spec.dims is not None and value.spec.known_dtype.is_floating:
            programs.setdefault(id(value.block.program), []).append(value)
    scopes = [fs.default_scope(), *(one.scope for one in found.values() if isinstance(getattr(one, "scope", None), fs.Scope))]
    for at, results in enumerate(programs.values()):
        program = results[0].block.program
        given = {v.name: v for v in results if program.global_block.find(v.name) is v and not v.persistable}
        inputs = [n for n, v in program.global_block.vars.items() if v.need_check_feed]
        results = [v for n, v in given.items() if all(op.type != "cached_attention" for op in prune(program, inputs, [n]).all_ops())]  # its places aren't drawn
        if not results:
            continue
        made = prune(program, inputs, [v.name for v in results])
        read = {n for op in made.all_ops() for n in op.all_reads()}
        held = [n for n in read if (v := made.global_block.find(n)) is not None and v.persistable]
        scope = next((s for s in scopes if all(n in s for n in held)), None)
        if scope is None:
            continue
        inputs = [n for n in inputs if n in read]
        path = Path(folder) / f"page{at}"
        fs.save_inference_model(path, inputs, [v.name for v in results], program=program, scope=scope)
        check_as_torch(path)
        checked += [v.name for v in results]
    return checked
