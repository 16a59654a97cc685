"""Transformer blocks: attention and a small network for each row, with residual connections and normalisation around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from foreshape.errors import SchemaError, ShapeError
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.scopes import current_scope, name_scope
from foreshape.language.program.variable import Variable
from foreshape.layer.attention import QueryNorm, attention_mask, multi_head_attention
from foreshape.layer.basic import Activation, fc
from foreshape.layer.cached_rows import AttentionCache
from foreshape.layer.normalization import dropout as drop
from foreshape.layer.normalization import layer_norm, rms_norm
from foreshape.layer.parameter import part_of
from foreshape.layer.positions import Rotary


@tells_line
def mlp(
    x: Variable, inner_size: int, output_size: int | None = None, activation: Activation = "gelu", *, dropout: float = 0.0, is_test: bool = False,
    weight: Any = None, bias: Any = None, split: bool = False, name: str = "mlp", gated: bool = False,
) -> Variable:  # fmt: skip
    """Apply two fully connected layers to each row: activation(x W1 + b1) W2 + b2, where gelu(x) = x Phi(x) (Hendrycks and Gimpel, 2016).

    With ``gated=True`` there are three, (activation(x Wg + bg) * (x W1 + b1)) W2 + b2 (Shazeer, "GLU Variants Improve Transformer", 2020).

    Examples:
        >>> y = layer.mlp(x, 2048)

    Args:
        x: ``[..., width]``, dense or ragged; the last dim alone is the features.
        inner_size: the columns between the two layers.
        output_size: the output columns; by default the width.
        activation: the activation between them, as for `activate`.
        dropout: between them, in training.
        is_test: no dropout.
        weight, bias: an initializer, a name or a `ParamAttr` for both weights and for both biases; with a name ``shared`` they are
            ``shared.inner`` and ``shared.outer``, and parameters of one name are shared. ``bias=False`` leaves both biases out.
        split: divide both layers over ranks, as `foreshape.split_layers` does.
        name: of the scope of the parameters ``inner.weight``, ``inner.bias``, ``outer.weight`` and ``outer.bias``.
        gated: multiply by a layer with the activation, of the parameters ``gate.weight`` and ``gate.bias``; ``inner`` has none then.

    Raises:
        ShapeError: an unknown width. SchemaError: the name of a parameter of another shape.
    """
    width = x.spec.known_dims[-1] if x.spec.rank > 1 else None
    if not isinstance(width, int):
        raise ShapeError(f"mlp({x.name}): the input must be [..., width] of a known width; it is {x.spec.text()}")

    def product(x: Variable, size: int, activation: Activation, called: str, direction: str) -> Variable:
        return fc(x, size, activation, 1, weight=part_of(weight, called), bias=part_of(bias, called), name=called, split=direction if split else None)

    with name_scope(name):
        if gated:
            gate = product(x, inner_size, activation, "gate", "columns")
            inner = gate * product(x, inner_size, None, "inner", "columns")
        else:
            inner = product(x, inner_size, activation, "inner", "columns")
        if dropout:
            inner = drop(inner, dropout, is_test)
        return product(inner, width if output_size is None else output_size, None, "outer", "rows")


class _Settings:
    """The common settings of a network's blocks."""

    def __init__(
        self, layer: str, heads: int, inner_size: int | None, norm: str, activation: Activation, dropout: float, is_test: bool, rotary: bool | Rotary,
        epsilon: float, weight: Any, bias: Any, split: bool, *, normalize: str = "layer", gated: bool = False, norms: Sequence[str] = ("pre", "post"),
        **attention: Any,
    ) -> None:  # fmt: skip
        if norm not in norms:
            raise SchemaError(f"{layer}: norm must be {' or '.join(map(repr, norms))}; seen {norm!r}")
        self.heads, self.inner_size, self.norm, self.activation = heads, inner_size, norm, activation
        self.dropout, self.is_test, self.rotary, self.epsilon, self.split = dropout, is_test, rotary, epsilon, split
        self.weight, self.bias = weight, bias
        self.normalize, self.gated, self.of_attention = normalize, gated, attention

    def normalised(self, x: Variable, name: str) -> Variable:
        return _normalised(x, self.normalize, self.epsilon, self.weight, self.bias, name)

    def attention(self, x: Variable, memory: Variable | None, name: str, **arguments: Any) -> Variable:
        weight, bias = part_of(self.weight, name), part_of(self.bias, name)
        return multi_head_attention(x, memory, heads=self.heads, weight=weight, bias=bias, split=self.split, name=name, **arguments)

    def residual(self, x: Variable, name: str, part: Callable[[Variable], Variable], onto: Variable | None = None) -> Variable:
        """Return x + part(norm(x)), or norm(x + part(x)), and their kin; ``onto`` in place of the first x."""
        norm = f"{name}_norm"
        change = part(x if self.norm in ("post", "result") else self.normalised(x, norm))
        if self.dropout:
            change = drop(change, self.dropout, self.is_test)
        if self.norm in ("both", "result"):
            change = self.normalised(change, f"{name}_result_norm")
        out = (x if onto is None else onto) + change
        return self.normalised(out, norm) if self.norm == "post" else out

    def attend(self, x: Variable, name: str, causal: bool, mask: Variable | None) -> Variable:
        def part(h: Variable) -> Variable:
            return self.attention(h, None, name, causal=causal, mask=mask, rotary=self.rotary, **self.of_attention)

        return self.residual(x, name, part)

    def look(self, x: Variable, memory: Variable, name: str, mask: Variable | None) -> Variable:
        def part(h: Variable) -> Variable:
            return self.attention(h, memory, name, mask=mask)

        return self.residual(x, name, part)

    def feed(self, x: Variable, onto: Variable | None = None) -> Variable:
        def part(h: Variable) -> Variable:
            inner: Any = 4 * h.spec.known_dims[-1] if self.inner_size is None else self.inner_size
            weight, bias = part_of(self.weight, "mlp"), part_of(self.bias, "mlp")
            settings: dict[str, Any] = {"dropout": self.dropout, "is_test": self.is_test, "split": self.split, "gated": self.gated}
            return mlp(h, inner, None, self.activation, weight=weight, bias=bias, **settings)

        return self.residual(x, "mlp", part, onto)


def _normalised(x: Variable, normalize: str, epsilon: float, weight: Any, bias: Any, name: str) -> Variable:
    """Return x normalised over the last dim; scale and shift start as the layer says, whatever the products start as."""
    if normalize == "rms":
        return rms_norm(x, epsilon, weight=part_of(weight, name, False), name=name)
    if normalize != "layer":
        raise SchemaError.one_of("normalize", ("layer", "rms"), normalize)
    return layer_norm(x, max(x.spec.rank - 1, 1), epsilon, weight=part_of(weight, name, False), bias=part_of(bias, name, False), name=name)


def _scope(name: str | None) -> AbstractContextManager[None]:
    """Return the scope of a block: one of this name, or the current one; outside of all "block"."""
    return name_scope(name or "block") if name is not None or not current_scope() else nullcontext()


@tells_line
def transformer_encoder_block(
    x: Variable, heads: int = 8, inner_size: int | None = None, *, norm: str = "pre", activation: Activation = "gelu", causal: bool = False,
    mask: Variable | None = None, rotary: bool | Rotary = False, dropout: float = 0.0, is_test: bool = False, epsilon: float = 1e-5, weight: Any = None,
    bias: Any = None, split: bool = False, name: str | None = None, normalize: str = "layer", gated: bool = False, key_heads: int | None = None,
    head_size: int | None = None, cache: AttentionCache | None = None, window: int | None = None, query_norm: QueryNorm | None = None,
    score_cap: float | None = None,
) -> Variable:  # fmt: skip
    """Apply one block of a transformer's encoder: attention of the rows to each other, then a small network for each row.

    With ``norm="pre"``, h = x + attention(norm(x)) and h + mlp(norm(h)) (Xiong et al., 2020); with ``norm="post"``, h = norm(x + attention(x)) and
    norm(h + mlp(h)) (Vaswani et al., 2017). With ``causal=True`` it is the block of a language model such as GPT-2.

    Language models have three more: "result", x + norm(attention(x)); "both", x + norm(attention(norm(x))); and "parallel",
    x + attention(norm(x)) + mlp(norm(x)), where each has a norm of its own.

    Examples:
        >>> with fs.name_scope("encoder"):
        ...     for i in range(12):
        ...         with fs.name_scope(str(i)):
        ...             h = layer.transformer_encoder_block(h, heads=8)  # encoder.0.attention.query.weight, encoder.0.mlp.inner.weight, ...

    Args:
        x: dense ``[batch, time, width]``, or ragged ``[rows, width]`` (then without ``mask``).
        heads: of the attention; they divide the width.
        inner_size: of `mlp`; by default four times the width.
        norm: the place of the normalisation: "pre", "post", "result", "both" or "parallel".
        activation: of `mlp`.
        causal, mask, rotary: as for `multi_head_attention`.
        dropout: of the results of attention and network, and within the network, in training. The weights of the attention are not dropped, so it stays
            one kernel.
        is_test: no dropout.
        epsilon: of both normalisations.
        weight, bias: an initializer, a name or a `ParamAttr` for all weights and for all biases; with a name ``shared`` they are
            ``shared.attention.query``, ..., ``shared.mlp.outer``, ``shared.mlp_norm``, and parameters of one name are shared. An initializer is for the
            products alone. ``bias=False`` leaves all biases out, including `layer_norm`'s.
        split: divide heads and network over ranks, as `foreshape.split_layers` does.
        name: of a scope around it. By default it is in the current scope, and outside of all in ``block``.
        normalize: "layer" for `layer_norm`, or "rms" for `rms_norm`.
        gated: as for `mlp`.
        key_heads, head_size, cache, window, query_norm, score_cap: as for `multi_head_attention`.

    Returns:
        As x. The parameters are in the scopes ``attention``, ``attention_norm``, ``mlp`` and ``mlp_norm``; the norms of results are in
        ``attention_result_norm`` and ``mlp_result_norm``.

    Raises:
        SchemaError: another ``norm`` or ``normalize``. ShapeError, TypeMismatchError: as for `multi_head_attention`.
    """
    settings = _Settings(
        "transformer_encoder_block",
        heads,
        inner_size,
        norm,
        activation,
        dropout,
        is_test,
        rotary,
        epsilon,
        weight,
        bias,
        split,
        normalize=normalize,
        gated=gated,
        norms=("pre", "post", "result", "both", "parallel"),
        key_heads=key_heads,
        head_size=head_size,
        cache=cache,
        window=window,
        query_norm=query_norm,
        score_cap=score_cap,
    )
    with _scope(name):
        h = settings.attend(x, "attention", causal, mask)
        return settings.feed(x, h) if norm == "parallel" else settings.feed(h)


@tells_line
def transformer_decoder_block(
    x: Variable, memory: Variable, heads: int = 8, inner_size: int | None = None, *, norm: str = "pre", activation: Activation = "gelu",
    causal: bool = True, mask: Variable | None = None, memory_mask: Variable | None = None, rotary: bool | Rotary = False, dropout: float = 0.0,
    is_test: bool = False, epsilon: float = 1e-5, weight: Any = None, bias: Any = None, split: bool = False, name: str | None = None,
) -> Variable:  # fmt: skip
    """Apply one block of a transformer's decoder: attention of the rows to earlier rows, attention to a memory, then a small network for each row.

    Examples:
        >>> y = layer.transformer_decoder_block(y, encoded, heads=8, memory_mask=is_word)

    Args:
        x: dense ``[batch, time, width]``, or ragged ``[rows, width]``.
        memory: the result of an encoder: dense ``[batch, keys, any width]``, or ragged with as many sequences as x.
        heads, inner_size, norm, activation, rotary, dropout, is_test, epsilon, weight, bias, split, name: as for `transformer_encoder_block`.
        causal: a row of x sees the rows up to its own only; all of the memory.
        mask, memory_mask: the visible keys of x and of the memory, as for `attention_mask`.
        Errors as for `transformer_encoder_block`.

    Returns:
        As x. The parameters are in the scopes ``attention``, ``attention_norm``, ``cross_attention``, ``cross_attention_norm``, ``mlp`` and
        ``mlp_norm``.
    """
    settings = _Settings("transformer_decoder_block", heads, inner_size, norm, activation, dropout, is_test, rotary, epsilon, weight, bias, split)
    with _scope(name):
        h = settings.attend(x, "attention", causal, mask)
        return settings.feed(settings.look(h, memory, "cross_attention", memory_mask))


@tells_line
def transformer_encoder(x: Variable, layers: int, heads: int = 8, inner_size: int | None = None, *, causal: bool = False, mask: Variable | None = None,
                        name: str = "encoder", each: Sequence[Mapping[str, Any]] = (), **settings: Any) -> Variable:  # fmt: skip
    """Apply ``layers`` blocks of `transformer_encoder_block`, one after the other, in the scopes ``encoder.0``, ``encoder.1``, ...

    The mask is made once for all of them. With any ``norm`` but "post", the result is normalised once more, by ``encoder.norm``.

    Examples:
        >>> h = layer.transformer_encoder(h, layers=6, heads=8, mask=layer.data("is_word", ["batch", "words"], "bool"))

    Args:
        x, heads, inner_size, causal, mask: as for `transformer_encoder_block`.
        layers: the number of blocks.
        name: of the scope around them.
        each: arguments of single blocks, beside those for all: as many mappings as blocks, such as ``{"window": 512}``.
        settings: further arguments of `transformer_encoder_block`; names in ``weight`` and ``bias`` are followed by the number of the block.
    """
    with name_scope(name):
        if x.spec.lod is None:
            mask, causal = attention_mask(x, None, mask, causal), False

        def block(h: Variable, arguments: dict[str, Any]) -> Variable:
            return transformer_encoder_block(h, heads, inner_size, causal=causal, mask=mask, **arguments)

        return _stacked(x, layers, block, settings, each)


@tells_line
def transformer_decoder(x: Variable, memory: Variable, layers: int, heads: int = 8, inner_size: int | None = None, *, causal: bool = True,
                        mask: Variable | None = None, memory_mask: Variable | None = None, name: str = "decoder", **settings: Any) -> Variable:  # fmt: skip
    """Apply ``layers`` blocks of `transformer_decoder_block`, one after the other, in the scopes ``decoder.0``, ``decoder.1``, ...

    Examples:
        >>> y = layer.transformer_decoder(y, encoded, layers=6, heads=8, memory_mask=is_word)

    The masks are made once for all of them. With the ``norm`` "pre", the result is normalised once more, by ``decoder.norm``.

    Args:
        x, memory, heads, inner_size, causal, mask, memory_mask: as for `transformer_decoder_block`.
        layers: the number of blocks.
        name: of the scope around them.
        settings: further arguments of `transformer_decoder_block`; names in ``weight`` and ``bias`` are followed by the number of the block.
    """
    with name_scope(name):
        if x.spec.lod is None:
            mask, causal = attention_mask(x, None, mask, causal), False
            memory_mask = attention_mask(x, memory, memory_mask)

        def block(h: Variable, arguments: dict[str, Any]) -> Variable:
            return transformer_decoder_block(h, memory, heads, inner_size, causal=causal, mask=mask, memory_mask=memory_mask, **arguments)

        return _stacked(x, layers, block, settings)


def _stacked(
    x: Variable, layers: int, block: Callable[[Variable, dict[str, Any]], Variable], settings: dict[str, Any], block_settings: Sequence[Mapping[str, Any]] = ()
) -> Variable:
    if layers < 1:
        raise SchemaError.must("there", "at least 1 block", f"layers={layers}")
    if block_settings and len(block_settings) != layers:
        raise SchemaError.must("each", f"arguments of {layers} blocks", len(block_settings))
    for index in range(layers):
        with name_scope(str(index)):
            arguments = settings | dict(block_settings[index]) if block_settings else settings
            x = block(x, arguments | {role: part_of(arguments[role], str(index)) for role in ("weight", "bias") if role in arguments})
    if settings.get("norm", "pre") != "post":
        x = _normalised(x, settings.get("normalize", "layer"), settings.get("epsilon", 1e-5), settings.get("weight"), settings.get("bias"), "norm")
    return x
