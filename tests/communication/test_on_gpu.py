"""Ranks that compute on a GPU: each strategy gives the losses that it gives on processors, whatever carries the messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import launch_ranks as launch
from support import rank_cases as cases
from support import ranks_on_gpu
from support.ranks_compared import one

WANTED = {
    "data_parallel": ["plain", "wide", "normalised", "sparse_lazy_adam", "repeated", "transformer"],
    "shard_optimizer": ["plain", "wide"],
    "shard_parameters": ["plain", "images"],
    "split_tables": ["sparse_sgd", "sparse_exact_adam"],
    "split_tables and shard_parameters": ["sparse_lazy_adam"],
    "split_layers": ["divided", "own_rows", "heads"],
}
NEAR = 1e-4


def there(device: str) -> None:
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")


def run(ranks: int, device: str, how: str, out: Path, wanted: dict[str, list[str]]) -> list[dict[str, Any]]:
    arguments = [f"{strategy}={','.join(names)}" for strategy, names in wanted.items()]
    launch.run(ranks, Path(ranks_on_gpu.__file__), out / "out", device, how, *arguments, deadline=500)
    return [dict(np.load(out / f"out.{rank}.npz")) for rank in range(ranks)]


@pytest.mark.parametrize(("device", "backend"), [pytest.param("cpu", "gloo", marks=pytest.mark.long), pytest.param("cuda", "nccl", marks=pytest.mark.cuda)])
def test_each_message_goes_through_the_backend_of_the_device(device: str, backend: str, tmp_path: Path) -> None:
    """One process is a group of its own: NCCL takes no two on one GPU."""
    there(device)
    (found,) = run(1, device, backend, tmp_path, WANTED)
    for strategy, names in WANTED.items():
        for name in names:
            np.testing.assert_allclose(found[f"{strategy}/{name}/losses"], found[f"{strategy}/{name}/exact"], rtol=NEAR, err_msg=f"{strategy} {name}")
            assert found[f"{strategy}/{name}/sent"] > 0


@pytest.mark.parametrize(("device", "ranks"), [pytest.param("cuda", n, marks=pytest.mark.cuda, id=f"{n}") for n in (1, 2)])
def test_ranks_on_one_gpu_train_as_one_processor_does(device: str, ranks: int, tmp_path: Path) -> None:
    """Two on one GPU send by way of the processors' memory; checkpoints are of what the GPU has."""
    there(device)
    found = run(ranks, device, "train", tmp_path, WANTED)
    for strategy, names in WANTED.items():
        for name in names:
            begin = f"{strategy}/{name}/"
            exact = one(name, "fp32")
            for rank in found:
                assert {k.removeprefix(begin) for k in rank if k.startswith(begin)} == exact.keys()
                np.testing.assert_allclose(rank[begin + "losses"], exact["losses"], rtol=NEAR, err_msg=begin)
                for key in exact:
                    np.testing.assert_allclose(rank[begin + key], found[0][begin + key], rtol=1e-6, atol=1e-7, err_msg=begin + key)
    kept = {p.name for p in tmp_path.iterdir() if p.is_dir()}
    assert len(kept) == (sum(map(len, WANTED.values())) if ranks > 1 else 0)
    assert not set(cases.UNEQUAL) & {n for names in WANTED.values() for n in names}
