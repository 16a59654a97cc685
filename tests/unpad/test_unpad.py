"""Networks of padded texts on ragged rows: each text's results and gradients are those of the text alone, or the network is refused in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.padded_networks import Encoder, alone, packed, texts

import foreshape as fs
from foreshape import layer
from foreshape.transforms.unpad import UnpaddedProgram

MASKS = ["lowest", "-10000", "infinite", "logarithm", "chosen", "both sides", "causal and mask", "causal of each text", "later keys", "window"]
POSITIONS = ["none", "gathered", "counted", "turned", "alibi", "relative"]
POOLINGS = [
    "rows", "mean of expanded", "mean of chosen", "mean by product", "unit mean", "sum", "max", "max of chosen", "max over zero", "first",
    "first row", "first of stride", "first by gather", "first of several cuts", "last by gather_nd", "last along", "last by argmax", "weighted", "attention",
    "causal window", "spread causal window", "zeros before a window", "channels last of masked", "causal channels last", "logarithm of sum",
    "logarithm of chosen", "mean of reversed twice",
]  # fmt: skip
LAYOUTS = ["rows", "time first", "joined heads"]
NETWORKS: list[dict[str, Any]] = [
    {},
    *({"mask": mask} for mask in MASKS[1:]),
    {"mask": "-10000", "norm": False, "positions": "none"},
    {"mask": "causal", "pooling": "last by gather_nd"},
    *({"positions": positions} for positions in POSITIONS),
    *({"pooling": pooling} for pooling in POOLINGS),
    *({"layout": layout} for layout in LAYOUTS),
    *({"source": source} for source in ("inverted", "lengths", "ids")),
    *({"positions": positions, "side": "left"} for positions in ("none", "alibi", "relative", "counted")),
    {"positions": "none", "side": "left", "pooling": "last in time"},
    {"positions": "none", "side": "left", "pooling": "last by argmax"},
    {"mask": "causal and mask", "positions": "alibi", "pooling": "last along", "layout": "time first", "layers": 2},
    {"mask": "window", "positions": "turned", "pooling": "max", "layers": 2},
    {"mask": "infinite", "source": "lengths", "positions": "relative", "pooling": "weighted"},
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("reduce_mean", {"pooling": "mean of all"}),
    ("reduce_sum", {"pooling": "sum of all"}),
    ("reduce_max", {"pooling": "max of all"}),
    ("softmax", {"mask": "none"}),
    ("softmax", {"mask": "times"}),  # divided out behind it: right, and not proved
    ("softmax", {"mask": "queries"}),
    ("softmax", {"mask": "-2"}),
    ("softmax", {"mask": "earlier keys"}),
    ("softmax", {"mask": "-10000", "deviation": 200.0}),
    ("softmax", {"mask": "-10000", "norm": False, "deviation": 200.0}),
    ("softmax", {"mask": "-10000", "norm": False, "positions": "none", "deviation": 200.0}),
    ("batch_norm", {"pooling": "batch statistics"}),
    ("conv2d|depthwise", {"pooling": "window of rows"}),
    ("conv2d", {"pooling": "window of later rows"}),
    ("conv2d", {"pooling": "zeros behind a window"}),
    ("pad", {"pooling": "ones before a window"}),
    ("reduce_max", {"pooling": "zeros before rows"}),
    ("conv2d", {"pooling": "channels last"}),
    ("conv2d", {"pooling": "causal window", "side": "left", "positions": "none"}),
    ("conv2d", {"pooling": "causal channels last", "side": "left", "positions": "none"}),
    ("logsumexp", {"pooling": "logarithm of all"}),
    ("logsumexp", {"pooling": "logarithm beside -2"}),
    ("elementwise_sub", {"pooling": "differences of texts"}),
    ("logsumexp", {"pooling": "logarithm of hidden"}),
    ("reduce_sum", {"pooling": "window of logarithms"}),
    ("matmul", {"pooling": "product of logarithms"}),
    ("cumsum", {"pooling": "running sum"}),
    ("slice", {"pooling": "last in time"}),
    ("slice", {"side": "left"}),
    ("range|gather|elementwise_add", {"side": "left", "positions": "gathered"}),
    ("slice", {"side": "left", "pooling": "first", "positions": "none"}),
    ("roll", {"pooling": "rolled"}),
    ("reduce_mean", {"pooling": "mean of texts"}),
    ("softmax", {"mask": "causal", "side": "left", "positions": "none"}),
    ("matmul", {"side": "left", "positions": "turned"}),
]


def label(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "plain"


class Pair:
    """A padded network, its values, and itself on ragged rows."""

    def __init__(self, side: str = "right", source: str = "mask", **settings: Any) -> None:
        self.source, self.side = source, side
        self.padded, startup = fs.Program(), fs.Program()
        with fs.program_guard(self.padded, startup):
            self.network = Encoder(source=source, **settings)
        self.scope, self.executor = fs.Scope(), fs.Executor(seed=5)
        self.executor.run(startup, scope=self.scope)

    def unpadded(self) -> UnpaddedProgram:
        mask = {"ids": None, "none": None, "lengths": "lengths"}.get(self.source, "mask")
        more: dict[str, Any] = {"pad_id": 0} if self.source == "ids" else {"masked": 1} if self.source == "inverted" else {}
        return fs.unpad(self.padded, mask, fetches=self.network.out, side=self.side, scope=self.scope, **more)  # type: ignore[arg-type]

    def alone(self, text: Any) -> Any:
        return self.executor.run(self.padded, alone(self.network, text, self.source), [self.network.out.name], self.scope)[0][0]

    def gradients(self, program: fs.Program, out: fs.Variable, feeds: list[dict[str, Any]]) -> dict[str, Any]:
        """The sums of the gradients of ``sum(out * factors)`` over several feeds."""
        program = program.clone()
        out = program.global_block.var(out.name)
        with fs.program_guard(program, fs.Program()):
            ragged = bool(out.lod_level)
            factors = layer.data("factors", [*(["rows"] if ragged else out.dims[:-1]), out.dims[-1]], lod_level=out.lod_level)
            pairs = fs.append_backward(layer.reduce_sum(out * factors))
        total: dict[str, Any] = {}
        for feed in feeds:
            for (parameter, _), value in zip(pairs, self.executor.run(program, feed, [g for _, g in pairs], self.scope), strict=True):
                total[parameter.name] = total.get(parameter.name, 0.0) + np.asarray(value)
        return total


def rows_of(result: Any, several: list[Any]) -> list[Any]:
    """The result for each text: its row, or its ragged rows."""
    if isinstance(result, fs.LoDTensor):
        assert result.sequence_lengths == [[len(t) for t in several]]
        return np.split(np.asarray(result.data), np.cumsum([len(t) for t in several])[:-1])
    return list(result)


def equal(actual: Any, expected: Any) -> None:
    assert np.asarray(actual).shape == np.asarray(expected).shape
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5 * max(1.0, float(np.abs(expected).max(initial=0.0))))


@pytest.mark.quick_cases(one_in=5, turn=2)
@pytest.mark.parametrize("settings", NETWORKS, ids=label)
def test_results_and_gradients_are_those_of_the_text_alone(settings: dict[str, Any]) -> None:
    pair, several = Pair(**settings), texts()
    program, feeds, (out,) = pair.unpadded()
    assert feeds == ["ids"] and out.block.program is program
    result = pair.executor.run(program, {"ids": packed(several)}, [out.name], pair.scope)[0]
    for row, text in zip(rows_of(result, several), several, strict=True):
        equal(row, pair.alone(text))
    factors = np.random.default_rng(6).standard_normal(np.asarray(getattr(result, "data", result)).shape).astype("float32")
    parts = np.split(factors, np.cumsum([len(t) for t in several])[:-1]) if out.lod_level else list(factors)
    fed = fs.LoDTensor(factors, [[len(t) for t in several]]) if out.lod_level else factors
    gradients = pair.gradients(program, out, [{"ids": packed(several), "factors": fed}])
    expected = pair.gradients(
        pair.padded, pair.network.out, [{**alone(pair.network, t, pair.source), "factors": p[None]} for t, p in zip(several, parts, strict=True)]
    )
    assert gradients.keys() <= expected.keys()
    for name, value in expected.items():
        equal(gradients.get(name, np.zeros_like(value)), value)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(("operator", "settings"), REFUSED, ids=lambda x: label(x) if isinstance(x, dict) else "")
def test_a_network_that_padding_reaches_is_refused_by_its_op(operator: str, settings: dict[str, Any]) -> None:
    with pytest.raises(fs.UnpadError, match=rf"^unpad: ({operator})\w* \(") as caught:
        Pair(**settings).unpadded()
    assert "padded_networks.py:" in str(caught.value)
