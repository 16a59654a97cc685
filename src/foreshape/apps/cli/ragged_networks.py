"""Networks of padded texts on ragged rows: `foreshape check --ragged` and `foreshape convert --ragged`."""

from __future__ import annotations

from typing import Any

import typer

from foreshape.apps.cli.command_options import refuse
from foreshape.apps.cli.output import print_plain, printing
from foreshape.apps.cli.show import count_words
from foreshape.core.data_class import data_class
from foreshape.errors import FormatError, UnpadError
from foreshape.interop.inference import load_inference_model, on_ragged_rows, save_inference_model
from foreshape.interop.model import InferenceModel
from foreshape.interop.onnx_files import save_onnx
from foreshape.runtime.engine import Scope


@data_class(frozen=True)
class RaggedFacts:
    """The outcome of the proof for a network on ragged rows.

    Attributes:
        model: the network on ragged rows; None where the proof fails.
        reason: why the proof fails.
    """

    model: InferenceModel | None
    reason: str = ""

    def json(self) -> dict[str, Any]:
        block = None if self.model is None else self.model.program.global_block
        inputs = [] if self.model is None or block is None else [block.var(n) for n in self.model.feeds]
        results = [] if self.model is None else self.model.fetches
        return {
            "ok": self.model is not None,
            "reason": self.reason,
            "inputs": {v.name: v.spec.text() for v in inputs},
            "results": {v.name: v.spec.text() for v in results},
        }

    def print(self) -> None:
        facts = self.json()
        if self.model is None:
            print_plain(f"ragged: no: {self.reason}")
            return
        inputs, results = (", ".join(f"{name}: {text}" for name, text in facts[kind].items()) for kind in ("inputs", "results"))
        print_plain(f"ragged: yes, padding does not reach the results: {inputs} -> {results}")


def ragged_settings(ragged: bool, mask: str | None, pad_id: int | None, side: str | None, masked: int | None, row_scales: bool) -> dict[str, Any] | None:
    """Return the arguments of `foreshape.unpad` in options; None without ``--ragged``. The other options are refused then."""
    if not ragged:
        for option, value in (("--mask", mask), ("--pad-id", pad_id), ("--side", side), ("--masked", masked), ("--row-scales", row_scales or None)):
            if value is not None:
                refuse(option, "a network of padded texts", "--ragged is not there")
        return None
    if side not in (None, "left", "right"):
        raise typer.BadParameter(f"{side!r} is neither left nor right", param_hint="--side")
    settings = {"mask": "attention_mask" if mask is None else mask or None, "pad_id": pad_id, "side": side or "right", "masked": masked or 0}
    return {**settings, "row_scales": row_scales}


def ragged_facts(model: str, settings: dict[str, Any]) -> RaggedFacts:
    """Return whether a saved network can do without padding. Raises `FormatError`, `SchemaError`: it cannot be read, or has no such input."""
    padded = load_inference_model(model, scope=Scope())
    try:
        return RaggedFacts(on_ragged_rows(padded, settings))
    except UnpadError as error:
        return RaggedFacts(None, str(error))


def print_ragged_converted(model: str, params: str | None, target: str, settings: dict[str, Any], opset: int | None) -> None:
    """Write a network of padded texts on ragged rows: a ``.pdmodel`` with its parameters, or an ``.onnx``, padded there with lengths."""
    if not target.endswith((".pdmodel", ".onnx")):
        raise FormatError(f"{target}: a network on ragged rows is written to a file that ends in .pdmodel or .onnx")
    network = load_inference_model(model, scope=Scope(), params=params, ragged=settings)
    if target.endswith(".onnx"):
        written = save_onnx(target, network.feeds, network.fetches, program=network.program, scope=network.scope, opset=opset)
        words = f"{count_words(written.nodes, 'node')}, operator set {written.opset}"
        if written.data:
            words += f"; {written.data}: its parameters"
    else:
        save_inference_model(target.removesuffix(".pdmodel"), network.feeds, network.fetches, program=network.program, scope=network.scope)
        words = f"{count_words(len(network.program.global_block.ops), 'op')}; {target.removesuffix('.pdmodel')}.pdiparams: its parameters"
    with printing():
        print_plain(f"{target}: {words}")
