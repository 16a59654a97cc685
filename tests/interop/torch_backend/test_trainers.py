"""The training loops of Lightning, accelerate and transformers with a network compiled by this backend, where they are installed (`make torch-trainers`)."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import foreshape as fs

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 3))

    def forward(self, x: Any, labels: Any = None, **_: Any) -> Any:
        logits = self.layers(x)
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


class Points(Dataset[Any]):
    def __init__(self) -> None:
        self.x = torch.randn(60, 8, generator=torch.Generator().manual_seed(1))
        self.labels = (self.x[:, :3]).argmax(1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "labels": self.labels[index]}


def both() -> tuple[nn.Module, Any]:
    """Return a network, and an equal one that is compiled."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    network = Network()
    return network, torch.compile(copy.deepcopy(network), backend="foreshape")


def same(reference: nn.Module, compiled: Any) -> None:
    """Require equal parameters, and at least one graph."""
    for p, q in zip(reference.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-5)
    assert fs.torch_report(compiled).graphs


def test_lightning(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Task(lightning.LightningModule):
        def __init__(self, network: Any) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: Any, index: int) -> Any:
            return self.network(**batch)["loss"]

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.network.parameters(), 1e-2)

    networks = both()
    for network in networks:
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", default_root_dir=tmp_path, **quiet)
        trainer.fit(Task(network), DataLoader(Points(), 16))
    same(*networks)


def test_accelerate() -> None:
    accelerate = pytest.importorskip("accelerate")
    networks = both()
    for network in networks:
        accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
        optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
        prepared, optimizer, loader = accelerator.prepare(network, optimizer, DataLoader(Points(), 16))
        for batch in [*loader, *loader]:
            with accelerator.accumulate(prepared):
                accelerator.backward(prepared(**batch)["loss"])
                optimizer.step()
                optimizer.zero_grad()
    same(*networks)


def test_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    networks = both()
    quiet = {"report_to": [], "save_strategy": "no", "logging_strategy": "no", "use_cpu": True, "disable_tqdm": True, "remove_unused_columns": False}
    for network in networks:
        settings = transformers.TrainingArguments(str(tmp_path), num_train_epochs=2, per_device_train_batch_size=16, learning_rate=1e-2, seed=3, **quiet)
        transformers.Trainer(model=network, args=settings, train_dataset=Points()).train()
    same(*networks)
