"""Networks of public model zoos as modules of torch, as plain code and as exports: each computes what the network does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.zoo import NAMES, network

import foreshape as fs
from foreshape.interop.torch_files import convert_to_torch

WITHIN = 1e-5
"""Of the largest number of a result."""
ALONE = """
import sys
sys.modules["foreshape"] = None  # it cannot be imported
folder = sys.argv[1]
sys.path.insert(0, folder)
import numpy, torch, net

given = [torch.from_numpy(a) for a in numpy.load(folder + "/feed.npz").values()]
with torch.inference_mode():
    for name, module in (("py", net.load()), ("pt2", torch.export.load(folder + "/net.pt2").module())):
        found = module(*given)
        found = found if isinstance(found, (tuple, list)) else [found]
        numpy.savez(f"{folder}/{name}.npz", **{str(at): one.numpy() for at, one in enumerate(found)})
"""


def check(seen: Any, wanted: list[np.ndarray], words: str) -> None:
    assert len(seen) == len(wanted)
    for at, (a, b) in enumerate(zip(seen, wanted, strict=True)):
        assert a.dtype == b.dtype and a.shape == b.shape, f"{words}, result {at}"
        largest = np.abs(b[np.isfinite(b)]).max(initial=1e-3)
        np.testing.assert_allclose(a, b, rtol=0, atol=WITHIN * largest, err_msg=f"{words}, result {at}")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_network_as_torch(name: str, tmp_path: Path) -> None:
    of = network(name)
    program, scope, feed = fs.load_program(of.data), of.scope(), of.feed
    wanted = [np.asarray(v) for v in fs.Executor().run(program, feed, of.fetches, scope)]
    fs.save_inference_model(tmp_path / "m", list(feed), of.fetches, program=program, scope=scope)
    module = fs.to_torch(fs.load_inference_model(tmp_path / "m", scope=fs.Scope())).eval()
    with torch.inference_mode():
        found = module(*map(torch.from_numpy, feed.values()))
    check([one.numpy() for one in (found if isinstance(found, tuple) else (found,))], wanted, "the module")
    np.savez(tmp_path / "feed.npz", **feed)
    for ending in ("py", "pt2"):
        written = convert_to_torch(tmp_path / "m.pdmodel", tmp_path / f"net.{ending}")
        assert written.fixed == (), "every open size stays open"
    subprocess.run([sys.executable, "-c", ALONE, str(tmp_path)], check=True)
    for ending in ("py", "pt2"):
        with np.load(tmp_path / f"{ending}.npz") as file:
            check([file[key] for key in sorted(file.files, key=int)], wanted, f"net.{ending}")
