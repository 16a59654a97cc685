"""`fs.callbacks.Preflight`, beside small likenesses of the two trainers: their events, settings and base classes."""

from __future__ import annotations

import random
import sys
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape.apps.training.callbacks.coming_batches import coming_batches, example_lengths

Preflight = fs.callbacks.Preflight
LENGTHS = [8, 30, 12, 500, 9, 14, 11, 10]
DATA = [torch.ones(n, dtype=torch.long) for n in LENGTHS]
LIMIT: dict[str, Any] = {"limit": "110MiB", "advice": False}
"""Enough for all but the longest: a card of this kind has workspaces of 64 MiB."""


def collated(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"words": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}


def loader(data: Any = DATA, **settings: Any) -> Any:
    return torch.utils.data.DataLoader(data, **{"batch_size": 2, "collate_fn": collated, **settings})


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.drop, self.out = torch.nn.Embedding(2000, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 2000)

    def forward(self, words: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.out(self.drop(self.table(words))).square().mean()}

    # as Lightning's modules have
    automatic_optimization = True

    def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
        return self(**batch)["loss"]


def arguments(**changes: Any) -> SimpleNamespace:
    plain = {"world_size": 1, "fsdp": "", "deepspeed": None, "bf16": False, "fp16": False, "gradient_accumulation_steps": 1, "max_grad_norm": 1.0}
    return SimpleNamespace(**{**plain, **changes})


class TrainerCallback:
    """As transformers': every event is called on every callback."""

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> str:
        return "left alone"


class LightningCallback:
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> str:
        return "left alone"


def test_transformers_trainer_is_stopped_before_the_first_step_and_told_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModuleType("transformers")
    package.TrainerCallback = TrainerCallback  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", package)
    net = Net()
    net.table.eval()
    adam = torch.optim.AdamW(net.parameters())
    callback: Any = Preflight.for_transformers("H100-80GB", **LIMIT)
    assert isinstance(callback, TrainerCallback) and isinstance(callback, Preflight) and callback.on_epoch_end(None, None, None) == "left alone"
    event = {"model": net, "optimizer": SimpleNamespace(optimizer=adam), "train_dataloader": loader(), "processing_class": None}
    with pytest.raises(fs.MemoryPlanError) as caught:
        callback.on_train_begin(arguments(), None, None, **event)
    words = str(caught.value)
    assert (
        words.startswith("batch 1 of 4 (from 0) will not fit on H100-80GB: 2 examples of length 500 would have torch reserve ") and "110 MiB are there" in words
    )
    assert "would fit: 1 example of length 500" in words
    assert (net.training, net.table.training, net.drop.training) == (True, False, True) and not adam.state and net.out.weight.grad is None
    roomy: Any = Preflight.for_transformers("H100-80GB")
    assert roomy.on_train_begin(arguments(), None, None, **event) is None
    assert roomy.forecast.fits and [step.length for step in roomy.forecast.steps] == [30, 500, 14, 11]
    halves: Any = Preflight.for_transformers("H100-80GB", optimizer="SGD")  # the constructor's go before the trainer's
    halves.on_train_begin(arguments(bf16=True), None, None, **event)
    assert halves.forecast.allocated < roomy.forecast.allocated
    with pytest.warns(fs.ForeshapeWarning, match="FSDP"):
        callback.on_train_begin(arguments(world_size=4, fsdp="full_shard"), None, None, **event)


def test_transformers_trainer_drops_the_scores_before_the_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    class Scored(Net):
        def forward(self, words: torch.Tensor) -> dict[str, torch.Tensor]:
            scores = self.out(self.table(words))
            return {"loss": torch.nn.functional.cross_entropy(scores.flatten(0, 1), words.flatten()), "scores": scores}

    monkeypatch.setitem(sys.modules, "transformers", ModuleType("transformers"))
    monkeypatch.setattr("transformers.TrainerCallback", TrainerCallback, raising=False)
    data, callback = [torch.ones(256, dtype=torch.long)] * 4, Preflight.for_transformers("24GiB", advice=False)
    net: Any = Scored()
    callback.on_train_begin(arguments(), None, None, model=net, optimizer=torch.optim.SGD(net.parameters()), train_dataloader=loader(data))
    kept = fs.forecast(net, collated(data[:2]), optimizer="SGD", device="24GiB", advice=False)
    assert callback.forecast is not None and callback.forecast.allocated == kept.allocated - 2 * 256 * 2000 * 4


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightnings_trainer_is_stopped_before_the_first_step(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(package)
    module.Callback = LightningCallback  # type: ignore[attr-defined]
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, module)
    net = Net()
    trainer = SimpleNamespace(
        strategy=object(), optimizers=[torch.optim.AdamW(net.parameters())], train_dataloader=loader(), precision="32-true", accumulate_grad_batches=1,
        gradient_clip_val=None,
    )  # fmt: skip
    callback: Any = Preflight.for_lightning("H100-80GB", **LIMIT)
    assert isinstance(callback, LightningCallback) and callback.setup(None, None, "fit") == "left alone"
    with pytest.raises(fs.MemoryPlanError, match=r"batch 1 of 4 \(from 0\) will not fit on H100-80GB: 2 examples of length 500"):
        callback.on_train_start(trainer, net)
    callback.settings = {}
    callback.on_train_start(trainer, net)
    assert callback.forecast.fits and len(callback.forecast.steps) == 4
    net.automatic_optimization = False
    with pytest.warns(fs.ForeshapeWarning, match="one optimizer"):
        callback.on_train_start(trainer, net)


def test_a_module_whose_step_cannot_be_forecast_is_trained_with_a_warning() -> None:
    class Branching(Net):
        def forward(self, words: torch.Tensor) -> dict[str, torch.Tensor]:
            return super().forward(words) if words.sum() > 3 else {}

    callback = Preflight("24GiB")
    with pytest.warns(fs.ForeshapeWarning, match=r"could not forecast this run, which goes on: .*test_preflight_callback.py:\d+"):
        assert callback.check(Branching(), loader()) is None
    if not torch.cuda.is_available():
        with pytest.raises(fs.SchemaError, match="there is no GPU here"):
            Preflight().check(Net(), loader())
    ours = Preflight("24GiB", example=lambda batch, length: {"words": torch.ones(batch, length, dtype=torch.long)}, lengths=[(2, 40), (1, 60)])
    prediction = ours.check(Net())
    assert prediction is not None and [(s.batch, s.length) for s in prediction.steps] == [(2, 40), (1, 60), (2, 40)]


def test_the_batches_of_a_loader_are_read_in_their_order_and_random_states_stay() -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    batches = coming_batches(loader(drop_last=True, batch_size=3))
    assert (batches.sizes, batches.examples, batches.is_ordered) == ([(3, 30), (3, 500)], [1, 3], True)
    assert batches.example["words"].shape == (3, 500) and batches.place(1) == "batch 1 of 2 (from 0)"
    assert batches.place(2) == "batch 0 of 2 (from 0), in the second epoch,"
    mixed = coming_batches(loader(shuffle=True))
    assert not mixed.is_ordered and sum(rows for rows, _ in mixed.sizes or ()) == 8
    worst = next(n for n, size in enumerate(mixed.sizes or ()) if size == (2, 500))
    assert mixed.place(worst) == "a batch with an example as long as example 3 of the data"
    listed = coming_batches(torch.utils.data.DataLoader(DATA, batch_sampler=[[0, 1, 2], [3]], collate_fn=collated))
    assert (listed.sizes, listed.is_ordered) == ([(3, 30), (1, 500)], True)
    part = coming_batches(loader(torch.utils.data.Subset(DATA, [3, 0])))  # type: ignore[arg-type]
    assert part.sizes == [(2, 500)]
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert states[2] == np.random.get_state()[1].tolist()  # type: ignore[index]


def test_batches_without_lengths_are_as_the_first_and_unreadable_ones_are_refused() -> None:
    class Numbered(torch.utils.data.Dataset[torch.Tensor]):
        def __getitem__(self, number: int) -> torch.Tensor:
            return DATA[number]

        def __len__(self) -> int:
            return len(DATA)

    class Columns(Numbered):
        lengths = tuple(LENGTHS)

    assert coming_batches(loader(Columns())).sizes == [(2, 30), (2, 500), (2, 14), (2, 11)]
    first = coming_batches(loader(Numbered()))
    assert first.sizes is None and first.example["words"].shape == (2, 30) and first.place(0) == "a batch as the first one"
    padded = coming_batches(loader(collate_fn=lambda rows: torch.ones(len(rows), 512)))
    assert padded.sizes is None and padded.example.shape == (2, 512) and padded.place(0) == "each batch"

    class Stream(torch.utils.data.IterableDataset[torch.Tensor]):
        def __iter__(self) -> Any:
            return iter(DATA)

    with pytest.raises(fs.SchemaError, match="cannot be read before the run: give example="):
        coming_batches(loader(Stream()))
    with pytest.raises(fs.SchemaError, match="can be read once alone"):
        coming_batches(torch.utils.data.DataLoader(DATA, batch_sampler=iter([[0, 1]]), collate_fn=collated))  # type: ignore[arg-type]


def test_a_check_by_the_first_batch_alone_warns() -> None:
    class Numbered(torch.utils.data.Dataset[torch.Tensor]):
        def __getitem__(self, number: int) -> torch.Tensor:
            return DATA[number]

        def __len__(self) -> int:
            return len(DATA)

    callback = Preflight("24GiB", advice=False)
    with pytest.warns(fs.ForeshapeWarning, match="Preflight: the lengths of the coming batches are not known, so that one batch stands for all"):
        prediction = callback.check(Net(), loader(Numbered()))
    assert prediction is not None and prediction is callback.forecast and "one batch stands for all" in prediction.notes[0]
    known = callback.check(Net(), loader())
    assert known is not None and "one batch" not in known.notes[0]
    equal = torch.utils.data.TensorDataset(torch.ones(8, 30, dtype=torch.long))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alike = callback.check(Net(), torch.utils.data.DataLoader(equal, batch_size=2))
    assert alike is not None and "one batch" not in alike.notes[0]


class ArrowColumns:
    """As a data set of ``datasets``: rows in Arrow's columns, which tell the lengths of their lists; and a format of the rows."""

    def __init__(self, rows: list[dict[str, Any]], kind: str | None = None) -> None:
        self.rows, self.format = rows, {"type": kind}
        self.column_names = list(rows[0])

    def __len__(self) -> int:
        return len(self.rows)

    def with_format(self, kind: str) -> ArrowColumns:
        return ArrowColumns(self.rows, kind)

    def select_columns(self, names: list[str]) -> ArrowColumns:
        return ArrowColumns([{name: row[name] for name in names} for row in self.rows], self.format["type"])

    def __getitem__(self, place: Any) -> Any:
        return ArrowTable(self.rows[place]) if self.format["type"] == "arrow" else self.rows[place]


class ArrowTable:
    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        types = {name: "list<item: int64>" if isinstance(value, list) else "string" for name, value in rows[0].items()}
        self.schema = SimpleNamespace(field=lambda name: SimpleNamespace(type=types[name]))

    def __getitem__(self, name: str) -> Any:
        lengths = [len(row[name]) for row in self.rows]
        filled = SimpleNamespace(to_pylist=lambda: lengths)
        return SimpleNamespace(chunks=[SimpleNamespace(value_lengths=lambda: SimpleNamespace(fill_null=lambda _: filled))])


@pytest.mark.parametrize(("kind", "expected"), [(None, LENGTHS), ("torch", LENGTHS), ("custom", None)])
def test_lengths_of_arrow_columns_are_read(kind: str | None, expected: list[int] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foreshape.apps.training.callbacks.coming_batches._ROWS", 3)
    data = ArrowColumns([{"title": "words", "words": [1] * n} for n in LENGTHS], kind)
    assert example_lengths(data) == expected


def test_arrow_columns_without_a_list_have_no_lengths() -> None:
    assert example_lengths(ArrowColumns([{"title": "words"}])) is None
