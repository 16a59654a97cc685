"""`EncoderNetwork`: an encoder under description over ragged rows, and `EncoderKind`, the settings of a kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foreshape import layer
from foreshape.apps.generation.rotations import rotation_of
from foreshape.core.data_class import data_class, field
from foreshape.errors import FormatError, SchemaError
from foreshape.language.program import Variable
from foreshape.layer.attention import shared_heads
from foreshape.layer.positions import Rotary, size_of


class EncoderNetwork:
    """A network under description. Its parameters have the names of their weights in the source.

    Attributes:
        config: of the source, with the defaults of its kind.
        inputs: the inputs by name.
        ids: the numbers of words, int64, ragged ``[rows]``.
        types: the numbers of the text of a pair, as ``ids``; None without such a table.
        turned: the names of weights ``[out, in]`` in the source.
        shifted: the names of weights less by 1 in the source.
        kind: its kind.
    """

    def __init__(self, kind: EncoderKind, config: Mapping[str, Any]) -> None:
        self.kind, self.config = kind, {**kind.defaults, **config}
        self.turned: set[str] = set()
        self.shifted: set[str] = set()
        self.ids = layer.data("input_ids", ["rows"], "int64", lod_level=1)
        types = self.size("type_vocab_size", default=0) if kind.types else 0
        self.inputs = {"input_ids": self.ids}
        self.types: Variable | None = None
        if types > 1:
            self.inputs["token_type_ids"] = layer.data("token_type_ids", ["rows"], "int64", lod_level=1)
            self.types = layer.lod_reset(self.inputs["token_type_ids"], self.ids)
        self._places: Variable | None = None
        self._lengths: Variable | None = None
        self.rows = kind.describe(self)

    def size(self, *names: str, default: Any = None) -> Any:
        """Return the first of some fields of the configuration. Raises `FormatError` without one and a default."""
        value = next((self.config[name] for name in names if self.config.get(name) is not None), default)
        if value is None:
            raise FormatError(f"the configuration of a {self.config.get('model_type')} must have {names[0]}")
        return value

    @property
    def width(self) -> int:
        return self.size("hidden_size", "dim", "d_model")

    @property
    def epsilon(self) -> float:
        return self.size("layer_norm_eps", "norm_eps", "rms_norm_eps", "layer_norm_epsilon", default=1e-12)

    def linear(self, x: Variable, size: int, name: str, bias: bool = True, activation: Any = None) -> Variable:
        self.turned.add(f"{name}.weight")
        return layer.fc(x, size, activation, weight=f"{name}.weight", bias=f"{name}.bias" if bias else False)

    def norm(self, x: Variable, name: str, bias: bool = True) -> Variable:
        return layer.layer_norm(x, epsilon=self.epsilon, weight=f"{name}.weight", bias=f"{name}.bias" if bias else False)

    def rms(self, x: Variable, name: str) -> Variable:
        if self.config["model_type"] == "gemma3_text":
            self.shifted.add(f"{name}.weight")
        return layer.rms_norm(x, self.epsilon, weight=f"{name}.weight")

    def table(self, ids: Variable, size: int, name: str, width: int | None = None) -> Variable:
        return layer.embedding(ids, [size, width or self.width], weight=f"{name}.weight")

    def words(self, name: str, width: int | None = None) -> Variable:
        return self.table(self.ids, self.size("vocab_size"), name, width)

    def activation(self, *names: str, default: str | None = None) -> Any:
        return activation_named(self.size(*names, default=default))

    def places(self) -> Variable:
        """Return 0, 1, 2, ... up to the longest text, fp32 ``[time]``."""
        if self._places is None:
            padded, self._lengths = layer.sequence_pad(layer.reshape(layer.cast(self.ids, "fp32"), [-1, 1]), 0.0)
            self._places = layer.cast(layer.range(0, size_of(padded, 1), 1, "int32"), "fp32")
        return self._places

    def lengths(self) -> Variable:
        """Return the number of words of each text, int64 ``[texts]``."""
        self.places()
        assert self._lengths is not None
        return self._lengths

    def distances(self) -> Variable:
        """Return the place of a key less the place of a row, fp32 ``[time, time]``: one row for each row."""
        places = self.places()
        return layer.unsqueeze(places, [0]) - layer.unsqueeze(places, [1])

    def window(self, reach: int) -> Variable:
        """Return the bias ``[1, time, time]`` to hide keys farther than ``reach`` from a row."""
        outside = layer.relu(layer.abs(self.distances()) - float(reach))
        return layer.unsqueeze(outside * -1e9, [0])

    def distance_bias(self, bucket: Callable[[Any], Any], buckets: int, heads: int, reach: int, name: str) -> Variable:
        """Return the bias ``[heads, time, time]``, of a learned number for each bucket of distances.

        Args:
            bucket: from distances, key less row, to their buckets.
            buckets, heads: the table's dims.
            reach: the distances from here on have one bucket.
            name: of the table.
        """
        import numpy

        table = layer.embedding(layer.assign(numpy.asarray(bucket(numpy.arange(-reach, reach + 1)), "int64")), [buckets, heads], weight=f"{name}.weight")
        place = layer.cast(layer.clip(self.distances(), -float(reach), float(reach)) + float(reach), "int64")
        return layer.transpose(square(layer.gather(table, layer.reshape(place, [-1])), place, heads), [2, 0, 1])

    def attention(
        self,
        q: Variable,
        k: Variable,
        v: Variable,
        heads: int,
        *,
        bias: Variable | None = None,
        scale: float | None = None,
        turn: tuple[Rotary, tuple[Variable, Variable]] | None = None,
        key_heads: int | None = None,
        causal: bool = False,
    ) -> Variable:
        """Return the mixed values of a row's own text, turned first by positions where ``turn`` is given."""
        key_heads = key_heads or heads
        size = q.spec.known_dims[-1]
        assert isinstance(size, int)
        size //= heads
        if turn is not None:
            q, k = (_rotated(x, n, size, *turn) for x, n in ((q, heads), (k, key_heads)))
        k, v = (shared_heads(x, key_heads, size, heads) for x in (k, v))
        return layer.sequence_attention(q, k, v, heads, causal, scale, bias)

    def turn(self, size: int, of_layers: str | None = None) -> tuple[Rotary, tuple[Variable, Variable]]:
        """Return the rotation of heads of ``size`` columns, and its cosines and sines of all rows."""
        rotation = rotation_of(self.config, size, of_layers=of_layers)
        if rotation.turned is not None or rotation.factor != 1.0:
            raise SchemaError("rotations of a part of a head's columns, or with a factor, are not known here")
        return rotation.rotary, rotation.rotary.turn(layer.position_numbers(self.ids), size, self.ids_like())

    def ids_like(self) -> Variable:
        return layer.position_numbers(self.ids)


def square(x: Variable, like: Variable, *row: int) -> Variable:
    """Return entries ``[time * time, *row]`` as ``[time, time, *row]``."""
    return layer.reshape(x, [size_of(like, 0), size_of(like, 1), *row])


def _rotated(x: Variable, heads: int, size: int, rotary: Rotary, turn: tuple[Variable, Variable]) -> Variable:
    dims = list(x.spec.known_dims)
    return layer.reshape(rotary.turned(layer.reshape(x, [dims[0], heads, size]), turn), dims)


@data_class(frozen=True)
class EncoderKind:
    """A kind of networks.

    Attributes:
        describe: from a network to its rows, ``[rows, width]``.
        base: the first part of the names of its weights where a head stands beside them.
        heads: from "score", "labels" and "words" to the description of a result, for a network and a number of labels.
        defaults: fields left out of configurations.
        types: True if the tokenizer's numbers of texts are read.
        padded: True if its scores are made of padded texts: a batch costs its longest text's square for each text.
        pad_positions: True if positions begin behind the number of the padding, and leave it out.
        renamed: from a name here to other names in sources, each with a part of the first dim (number, of how many) or None.
    """

    describe: Callable[[EncoderNetwork], Variable]
    base: str
    heads: Mapping[str, Callable[[EncoderNetwork, int], Variable]] = field(default_factory=dict[str, Callable[["EncoderNetwork", int], Variable]])
    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    types: bool = False
    padded: bool = False
    pad_positions: bool = False
    renamed: Callable[[str], Sequence[tuple[str, tuple[int, int] | None]]] = lambda name: ()


def activation_named(name: str) -> Any:
    """Return the activation of a name of transformers. Raises `SchemaError` for another one."""
    names: dict[str, Any] = {
        "gelu": "gelu",
        "gelu_new": _tanh_gelu,
        "gelu_pytorch_tanh": _tanh_gelu,
        "gelu_fast": _tanh_gelu,
        "relu": "relu",
        "silu": "silu",
        "swish": "silu",
        "tanh": "tanh",
    }
    if name not in names:
        raise SchemaError.one_of("the activation", names, name)
    return names[name]


def _tanh_gelu(x: Variable) -> Variable:
    return layer.gelu(x, approximate=True)
