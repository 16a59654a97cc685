"""Wrong arguments of `fs.forecast` and of `Preflight`: each is refused in words, and likenesses of lists are taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.small_texts import Texts, batch, entropy

import foreshape as fs


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accumulate": "2"}, "accumulate must be at least 1, a whole number; seen '2'"),
        ({"accumulate": None}, "accumulate must be at least 1, a whole number; seen None"),
        ({"batch": "2"}, "batch must be at least 1, a whole number; seen '2'"),
        ({"batch": 2.5}, "batch must be at least 1, a whole number; seen 2.5"),
        ({"ddp": "yes"}, "ddp must be True, or a dict .*; seen 'yes'"),
        ({"ddp": {"bucket_cap_mb": float("nan")}}, "bucket_cap_mb of ddp must be a positive number of MiB; seen nan"),
        ({"ddp": {"bucket_cap_mb": -1}}, "bucket_cap_mb of ddp must be a positive number of MiB; seen -1"),
        ({"ddp": {"bucket_cap_mb": "a"}}, "bucket_cap_mb of ddp must be a positive number of MiB; seen 'a'"),
        ({"fsdp": 0}, "fsdp must be a number of ranks of at least 1; seen 0"),
        ({"fsdp": "2"}, "fsdp must be a number of ranks of at least 1; seen '2'"),
        ({"fsdp": {"ranks": 2, "units": ["block.0"]}}, "units of fsdp must be names of modules; seen block.0.*did you mean 'blocks.0'"),
        ({"fsdp": {"ranks": 2, "units": "blocks"}}, "units of fsdp must be a list of names of modules; seen 'blocks'"),
        ({"allocator": 5}, "allocator must be a text as PYTORCH_CUDA_ALLOC_CONF has it; seen 5"),
        ({"lengths": 5}, "lengths must be a list of lengths, or of pairs .*; seen 5"),
        ({"lengths": "128"}, "lengths must be a list of lengths, or of pairs .*; seen '128'"),
        ({"lengths": np.array([[2.5, 8.0]])}, r"lengths\[0\] must be a length, or a pair"),
        ({"checkpointing": "blocks.0"}, r"checkpointing must be True, or a list of names of modules; seen 'blocks.0': did you mean \['blocks.0'\]"),
        ({"checkpointing": 3}, "checkpointing must be True, or a list of names of modules; seen 3"),
        ({"precision": "amp"}, "precision must be one of .*; seen 'amp': did you mean 'amp-bf16' or 'amp-fp16'"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_in_words(options: dict[str, Any], words: str) -> None:
    with pytest.raises(fs.SchemaError, match=words):
        fs.forecast(Texts(), batch(2, 8), **{"loss": entropy, **options})


@pytest.mark.parametrize("kind", [np.array, torch.tensor, lambda pairs: [np.array(pair) for pair in pairs], lambda pairs: [torch.tensor(p) for p in pairs]])
def test_arrays_and_tensors_are_lists_of_batches(kind: Any) -> None:
    pairs = [(2, 8), (3, 16), (4, 8)]
    options: dict[str, Any] = {"loss": entropy, "advice": False}
    assert fs.forecast(Texts, batch, lengths=kind(pairs), **options).steps == fs.forecast(Texts, batch, lengths=pairs, **options).steps
    lengths = [length for _, length in pairs]
    assert fs.forecast(Texts, batch, lengths=kind(lengths), batch=2, **options).steps == fs.forecast(Texts, batch, lengths=lengths, batch=2, **options).steps


def test_an_unknown_setting_of_a_check_is_refused_as_by_the_constructor() -> None:
    for words in ("Preflight takes device=, and settings", "Preflight.check takes settings"):
        with pytest.raises(fs.SchemaError, match=rf"{words} of fs.forecast; seen precison=: did you mean 'precision'"):
            fs.callbacks.Preflight("24GiB", **{"precison": "bf16"} if "device" in words else {}).check(Texts(), precison="bf16")
