"""`fs.forecast` of networks of installed packages, and what its own files import."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import foreshape as fs
from foreshape.apps.forecast.cards import CARDS


def test_lines_are_the_users_and_without_one_an_installed_packages(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages" / "of_others"
    folder.mkdir(parents=True)
    code = "import torch\n\n\nclass Net(torch.nn.Linear):\n    def forward(self, x):\n        return super().forward(x).square().mean()\n"
    (folder / "net.py").write_text(code)
    spec = importlib.util.spec_from_file_location("net_of_others", folder / "net.py")
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)

    class Users(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = package.Net(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

    def lines(net: Any) -> set[str]:
        return {tensor.line for tensor in fs.forecast(net, torch.zeros(64, 8), advice=False).peak_tensors if tensor.kind == "activation"}

    assert lines(package.Net(8, 8)) == {"net.py:6"}
    assert lines(Users()) == {f"test_installed_packages.py:{Users.forward.__code__.co_firstlineno + 1}"}


def test_decoders_of_transformers_keep_no_mask_of_packed_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tensors without numbers ``find_packed_sequence_indices`` answers that there are such sequences."""
    masks: Any = ModuleType("transformers.masking_utils")
    masks.find_packed_sequence_indices = lambda position_ids: position_ids
    monkeypatch.setitem(sys.modules, masks.__name__, masks)

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 8)

        def forward(self, words: torch.Tensor, position_ids: torch.Tensor | None = None) -> torch.Tensor:
            places = torch.arange(words.shape[1])[None] if position_ids is None else position_ids
            packed = masks.find_packed_sequence_indices(places)
            x = self.table(words)
            scores = x @ x.transpose(1, 2)
            return (scores if packed is None else scores.masked_fill(packed[:, :, None] == packed[:, None], 0.0)).mean()

    words = torch.ones(4, 256, dtype=torch.int64)
    packed = fs.forecast(Decoder, {"words": words, "position_ids": words}, advice=False)
    assert fs.forecast(Decoder, {"words": words}, advice=False).allocated < packed.allocated - 256 * 256
    assert masks.find_packed_sequence_indices(words) is words


def test_the_names_of_cards_need_neither_torch_nor_numpy() -> None:
    """The shell waits for them."""
    code = "import sys; from foreshape.apps.cli.completion import cards; print(len(cards()), [name for name in ('torch', 'numpy') if name in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.split(maxsplit=1) == [str(len(CARDS)), "[]\n"]
