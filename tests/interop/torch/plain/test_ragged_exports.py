"""Ragged networks as exported programs of torch: rows and offsets go in, with open sizes of both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.errors import FormatError
from foreshape.interop.torch_files import convert_to_torch

LENGTHS = ([2, 0, 4], [1], [0, 0, 5, 1, 9, 0], [3, 3], [0, 0])


def exported(tmp_path: Path, network: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """Return a saved network of words and their embeddings, as our model and as torch's exported program."""
    words = layer.data("words", shape=["rows", 1], dtype="int64", lod_level=1)
    result = network(words, layer.fc(layer.embedding(words, [50, 8]), 8, activation="tanh"))
    fs.Executor(seed=3).run(fs.default_startup_program())
    fs.save_inference_model(tmp_path / "m", [words], [result])
    written = convert_to_torch(tmp_path / "m.pdmodel", tmp_path / "m.pt2")
    assert not written.fixed
    return fs.load_inference_model(tmp_path / "m", scope=fs.Scope()), torch.export.load(tmp_path / "m.pt2")


def compare(model: Any, program: Any) -> None:
    """Compare both at batches of other lengths, a single sequence and empty ones among them."""
    assert not [n for n in program.graph.nodes if "foreshape" in str(n.target)]
    assert program.graph_signature.user_inputs == ("words", "words_offsets")
    module = program.module()
    for at, lengths in enumerate(LENGTHS):
        words = np.random.RandomState(at).randint(0, 50, (sum(lengths), 1))
        wanted = model.run({"words": fs.LoDTensor(words, [lengths])})[0]
        seen = module(torch.from_numpy(words), torch.tensor([0, *np.cumsum(lengths)]))
        if isinstance(wanted, fs.LoDTensor):
            seen, offsets = seen
            assert offsets.diff().tolist() == [*wanted.sequence_lengths[-1]]
            wanted = np.asarray(wanted.data)
        np.testing.assert_allclose(seen.detach(), wanted, atol=1e-5)


def encoder(words: Any, x: Any) -> Any:
    attended = layer.sequence_attention(layer.fc(x, 8), layer.fc(x, 8), layer.fc(x, 8), 2)
    x = layer.layer_norm(x + layer.fc(attended, 8))
    return layer.layer_norm(x + layer.fc(layer.fc(x, 16, activation="relu"), 8))


def biased(words: Any, x: Any) -> Any:
    numbers = np.random.RandomState(3).randn(2, 12, 12).astype("float32")
    numbers[:, abs(np.subtract.outer(np.arange(12), np.arange(12))) > 2] = -np.inf  # a window: rows of padding see no row of a short text
    return layer.sequence_attention(layer.fc(x, 8), x, layer.fc(x, 8), 2, bias=layer.assign(numbers))


def test_a_classifier_of_ragged_texts_is_exported(tmp_path: Path) -> None:
    compare(*exported(tmp_path, lambda words, x: layer.fc(layer.sequence_pool(x, "average"), 3)))


@pytest.mark.long
@pytest.mark.parametrize(
    "network",
    [
        encoder,
        biased,
        lambda words, x: layer.fc(layer.sequence_pool(encoder(words, x), "max"), 3),
        lambda words, x: layer.fc(layer.sequence_pool(x, "last"), 3),
        lambda words, x: layer.sequence_pool(x * layer.sequence_softmax(layer.fc(x, 1)), "sum"),
        lambda words, x: layer.sequence_expand(layer.sequence_pool(x, "min"), x) + x,
        lambda words, x: layer.sequence_pool(layer.sequence_conv(x, 6, 3), "sqrt"),
        lambda words, x: layer.sequence_reverse(x),
        lambda words, x: layer.lstm(x, 6, num_layers=2, bidirectional=True)[0],
        lambda words, x: layer.gru(x, 6)[1],
        lambda words, x: layer.sequence_erase(words, [3, 4, 7]),
        lambda words, x: layer.sequence_pad(x, layer.fill_constant([1], "float32", 0.5))[0],
    ],
)
def test_operators_of_sequences_are_exported(network: Callable[[Any, Any], Any], tmp_path: Path) -> None:
    compare(*exported(tmp_path, network))


@pytest.mark.long
def test_labels_and_several_levels_are_exported(tmp_path: Path) -> None:
    words = layer.data("words", shape=["rows", 4], lod_level=2)
    weights = layer.data("weights", shape=["batch", 3])
    texts = layer.sequence_pool(layer.sequence_pool(layer.fc(words, 3), "average"), "sum")
    result = texts * weights
    fs.Executor(seed=3).run(fs.default_startup_program())
    fs.save_inference_model(tmp_path / "m", [words, weights], [result])
    convert_to_torch(tmp_path / "m.pdmodel", tmp_path / "m.pt2")
    model, module = fs.load_inference_model(tmp_path / "m", scope=fs.Scope()), torch.export.load(tmp_path / "m.pt2").module()
    for outer, inner in (([2, 1], [3, 0, 4]), ([1, 0, 3], [1, 1, 0, 2])):
        rows, by = np.random.RandomState(1).randn(sum(inner), 4).astype("float32"), np.ones((len(outer), 3), "float32") * 3
        wanted = model.run({"words": fs.LoDTensor(rows, [outer, inner]), "weights": by})[0]
        offsets = [torch.tensor([0, *np.cumsum(lengths)]) for lengths in (outer, inner)]
        np.testing.assert_allclose(module(torch.from_numpy(rows), offsets, torch.from_numpy(by)).detach(), wanted, atol=1e-5)


def test_an_operator_that_no_trace_goes_through_is_named(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"refuses it.*: sequence_concat, at .*joined\(.*write a \.py"):
        exported(tmp_path, lambda words, x: layer.sequence_pool(layer.sequence_concat([x, x]), "sum"))
