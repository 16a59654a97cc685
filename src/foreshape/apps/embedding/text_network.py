"""`TextNetwork`: a network over ragged words with its weights, and the runs of its results."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foreshape import layer
from foreshape.apps.embedding.encoder_kinds import KINDS, EncoderNetwork, normal_config
from foreshape.apps.generation.transformers_models import folder_weights, json_object, store_weights
from foreshape.compiler.memory import Plan
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import FormatError, SchemaError
from foreshape.language.program import Program, Variable, program_guard
from foreshape.runtime.engine import Executor, Scope
from foreshape.runtime.engine.prepared_run import repeated

POOLINGS: Mapping[str, str] = {
    "cls": "first", "max": "max", "mean": "average", "mean_sqrt_len_tokens": "sqrt", "weightedmean": "", "lasttoken": "last",
}  # fmt: skip
"""The modes of pooling of sentence-transformers, in the order in which older files join them, and those of `layer.sequence_pool`."""


class TextNetwork:
    """A network from the words of some texts to their rows.

    Attributes:
        rows: the result, ragged ``[rows, width]``; None of a network that gives one row a text.
        result: the result of its head, or the row of each text; None without one.
        positions: the most words of a text; None without a limit.
        padded: True if a batch costs its longest text's square for each text.
    """

    def __init__(
        self, inputs: Mapping[str, Variable], rows: Variable | None, result: Variable | None, scope: Scope, *, positions: int | None, padded: bool = False,
        threads: int | None = None,
    ) -> None:  # fmt: skip
        self.inputs, self.rows, self.result, self.positions, self.padded = dict(inputs), rows, result, positions, padded
        self.program = self.inputs["input_ids"].block.program
        self.scope, self.executor = scope, Executor(threads=threads, frozen=True)
        self._runs: dict[str, Callable[[Any], list[Any]]] = {}
        self._pooled: dict[tuple[tuple[str, ...], bool], Variable] = {}
        self._skipped: Variable | None = None

    def pooled(self, modes: Sequence[str], skipping: bool = False) -> Variable:
        """Return the rows of each text pooled, ``[texts, width * modes]``; with ``skipping`` without its first rows, whose number is fed."""
        key = tuple(modes), skipping
        if key not in self._pooled:
            assert self.rows is not None
            with program_guard(self.program):
                numbers = layer.reshape(layer.position_numbers(self.rows), [-1, 1]) + 1.0 if "weightedmean" in modes else None
                rows, weights = self.rows, numbers
                if skipping:
                    rows, weights = self._behind(rows), numbers if numbers is None else self._behind(numbers)
                parts = [_pool(rows, mode, weights) for mode in modes]
                self._pooled[key] = layer.concat(parts, 1) if len(parts) > 1 else parts[0]
        return self._pooled[key]

    def _behind(self, x: Variable) -> Variable:
        if self._skipped is None:
            self._skipped = layer.data("skipped_rows", ["texts", 1], "int64")
        whole = layer.sequence_pool(layer.reshape(layer.position_numbers(x), [-1, 1]), "last")
        length = layer.cast(whole, "int64") + 1 - self._skipped
        return layer.sequence_slice(x, self._skipped, length)

    def active_words(self, strategy: str = "max", activation: str = "relu") -> Variable:
        """Return the row of each text over words: the greatest log(1 + relu(score)) of its rows, or their sum (Formal et al., "SPLADE", 2021).

        Args:
            strategy: "max" or "sum".
            activation: "relu", or "log1p_relu" for another logarithm.
        """
        key = (strategy, activation), False
        if key not in self._pooled:
            assert self.result is not None
            with program_guard(self.program):
                x = layer.sequence_pool(self.result, "max") if strategy == "max" else self.result  # each step is monotonic
                x = layer.log1p(layer.relu(x))
                x = layer.log1p(x) if activation == "log1p_relu" else x
                self._pooled[key] = x if strategy == "max" else layer.sequence_pool(x, "sum")
        return self._pooled[key]

    def run(self, variable: Variable, ids: Sequence[Any], types: Sequence[Any], skipped: int = 0) -> Any:
        """Return the value of a result for some texts.

        Args:
            variable: the result.
            ids, types: for each text the numbers of its words, and of the text of a pair they are of.
            skipped: the first rows left out of pooling.
        """
        import numpy

        lengths = [len(text) for text in ids]
        feed: dict[str, Any] = {}
        for name, parts in (("input_ids", ids), ("token_type_ids", types)):
            if name in self.inputs:
                feed[self.inputs[name].name] = LoDTensor.of_lengths(_int64(numpy.concatenate([numpy.asarray(p, "int64") for p in parts])), [lengths])
        if skipped and self._skipped is not None:
            feed[self._skipped.name] = numpy.array([[min(skipped, max(n - 1, 0))] for n in lengths], "int64")
        if variable.name not in self._runs:
            self._runs[variable.name] = repeated(self.executor, self.program, [variable.name], self.scope)
        return self._runs[variable.name](feed)[0]

    def plan(self, variable: Variable) -> Plan:
        """Return the memory plan of a result by the sizes of a batch."""
        return Plan(self.program, [variable.name], frozen=True)


def _int64(numbers: Any) -> Any:
    from foreshape.core.values.conversion import to_tensor

    return to_tensor(numbers)


def _pool(rows: Variable, mode: str, numbers: Variable | None) -> Variable:
    if mode != "weightedmean":
        return layer.sequence_pool(rows, POOLINGS[mode])
    assert numbers is not None
    return layer.sequence_pool(rows * numbers, "sum") / layer.sequence_pool(numbers, "sum")


def open_encoder(folder: Path, head: str | None = None, threads: int | None = None) -> tuple[TextNetwork, dict[str, Any]]:
    """Return the encoder of a folder of the transformers library, and its configuration.

    Args:
        folder: with config.json and weights.
        head: "score", "labels" or "words", for the result beside the rows; None for the rows alone.
        threads: as for `Executor`.

    Raises:
        FormatError: a file is missing or damaged, or a weight is missing or has other dims. SchemaError: a kind or a setting without a form here.
    """
    if not (folder / "config.json").is_file():
        raise FormatError(f"{str(folder)[:300]} must have config.json, the configuration of the network")
    config = normal_config(json_object(folder / "config.json"))
    kind, main = KINDS[config["model_type"]], Program()
    with program_guard(main, Program()):
        network = EncoderNetwork(kind, config)
        result = None
        if head is not None:
            if head not in kind.heads:
                raise SchemaError(f"a network of the kind {config['model_type']} with {config.get('architectures')} is not known here")
            result = kind.heads[head](network, len(config.get("id2label") or {}) or config.get("num_labels") or 2)
    scope, weights = Scope(), folder_weights(folder)

    def value(name: str) -> Tensor | None:
        tensor = _weight(weights, kind.base, name)
        tensor = _renamed(weights, network, name) if tensor is None else tensor
        if tensor is None:
            return None
        if not tensor.is_floating_point():
            raise SchemaError.must(f"the weight {name}", "in floats", str(tensor.dtype))
        tensor = tensor.float() + 1.0 if name in network.shifted else tensor
        return tensor.T if name in network.turned else tensor

    store_weights(main, scope, value)
    limit = config.get("max_position_embeddings")
    if kind.pad_positions and limit:
        limit -= config.get("pad_token_id", 1) + 1
    return TextNetwork(network.inputs, network.rows, result, scope, positions=limit, padded=kind.padded, threads=threads), config


def _renamed(weights: Mapping[str, Tensor], network: EncoderNetwork, name: str) -> Tensor | None:
    for other, part in network.kind.renamed(name):
        value = _weight(weights, network.kind.base, other)
        if value is not None:
            return value if part is None else value.chunk(part[1])[part[0]]
    return None


def _weight(weights: Mapping[str, Tensor], base: str, name: str) -> Tensor | None:
    """Return the weight of a name, with or without the first part; older files name the parts of normalizations gamma and beta."""
    names = [base + name, name]
    if "norm" in name.lower():
        names += [n.removesuffix(".weight") + ".gamma" if n.endswith(".weight") else n.removesuffix(".bias") + ".beta" for n in names]
    return next((weights[n] for n in names if n in weights), None)


def open_onnx(path: str | os.PathLike[str], threads: int | None = None) -> TextNetwork:
    """Return the network of an ``.onnx`` file of padded texts, over ragged rows.

    Raises:
        SchemaError: no proof that padding reaches nothing, or other inputs and results.
    """
    import foreshape

    unpad: Any = getattr(foreshape, "unpad", None)
    if unpad is None:
        raise SchemaError(
            f"{os.fspath(path)}: networks of padded texts are read through fs.unpad, and this installation has none; give the folder of the network"
        )
    model = unpad(os.fspath(path), mask="attention_mask")
    inputs = {name: model.program.global_block.var(name) for name in model.feeds}
    fetched = list(model.fetches)
    rows = next((v for v in fetched if v.spec.lod is not None and v.spec.rank == 2), None)
    result = next((v for v in fetched if v.spec.lod is None and v.spec.rank == 2), None)
    return TextNetwork(inputs, rows, result, model.scope, positions=None, threads=threads)
