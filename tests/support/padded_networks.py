"""Small encoders of padded texts, in the forms in which networks are exported: masks, positions, poolings and layouts by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer

WIDTH, HEADS, WORDS, PLACES = 8, 2, 32, 24
LOWEST = float(np.finfo("float32").min)
LENGTHS = [7, 3, 12]


def weights(*dims: int, deviation: float = 0.5) -> fs.Variable:
    return layer.create_parameter(dims, "fp32", layer.Normal(0.0, deviation))


def linear(x: fs.Variable, width: int = WIDTH, deviation: float = 0.5) -> fs.Variable:
    return layer.matmul(x, weights(x.dims[-1], width, deviation=deviation)) + weights(width)


def normed(x: fs.Variable) -> fs.Variable:
    return layer.layer_norm(x, begin_norm_axis=len(x.dims) - 1)


class Encoder:
    """One description of a padded encoder in the current program.

    Args:
        mask: how attention hides the rows of padding.
        positions, pooling, layout: by name.
        source: the input that tells the rows: mask, inverted, lengths, ids, none.
        norm: layer norm before attention.
        deviation: of the weights of queries and keys.
        layers: the number of layers.
    """

    def __init__(
        self, mask: str = "lowest", positions: str = "table", pooling: str = "mean", layout: str = "plain", source: str = "mask", norm: bool = True,
        deviation: float = 0.5, layers: int = 1,
    ) -> None:  # fmt: skip
        self.form, self.positions, self.layout, self.deviation = mask, positions, layout, deviation
        self.ids = layer.data("ids", ["texts", "time"], "int64")
        self.feeds = [self.ids]
        self.time = layer.shape(self.ids)[1]
        self.mask = self._mask(source)
        h = layer.embedding(self.ids, [WORDS, WIDTH], weight=layer.Normal(0.0, 0.7))
        h = self._placed(h)
        h = normed(h) if norm else h
        if layout == "time first":
            h = layer.transpose(h, [1, 0, 2])
        for _ in range(layers):
            h = self._layer(h, norm)
        if layout == "time first":
            h = layer.transpose(h, [1, 0, 2])
        self.out = self._pooled(h, pooling)

    def _mask(self, source: str) -> fs.Variable:
        """The mask with 1 for a row of a text, as floats."""
        if source == "ids":
            return layer.cast(layer.not_equal(self.ids, layer.fill_constant([1], "int64", 0)), "fp32")
        if source == "none":
            return layer.fill_like(layer.cast(self.ids, "fp32"), 1.0)
        if source == "lengths":
            lengths = layer.data("lengths", ["texts"], "int64")
            self.feeds.append(lengths)
            places = layer.unsqueeze(layer.range(0, layer.shape(self.ids)[1]), [0])
            return layer.cast(layer.less_than(places, layer.unsqueeze(lengths, [1])), "fp32")
        mask = layer.data("mask", ["texts", "time"], "int64")
        self.feeds.append(mask)
        mask = layer.cast(mask, "fp32")
        return 1.0 - mask if source == "inverted" else mask

    def _places(self) -> fs.Variable:
        return layer.range(0, layer.shape(self.ids)[1])

    def _placed(self, h: fs.Variable) -> fs.Variable:
        if self.positions == "table":
            return h + layer.slice(weights(1, PLACES, WIDTH), [1], [0], [self.time])
        if self.positions == "gathered":
            return h + layer.gather(weights(PLACES, WIDTH), self._places())
        if self.positions == "counted":
            rows = layer.cast(self.mask, "int64")
            return h + layer.embedding(layer.cumsum(rows, 1) * rows, [PLACES + 1, WIDTH], weight=layer.Normal(0.0, 0.7))
        return h

    def _bias(self) -> fs.Variable | None:
        places = self._places()
        apart = layer.unsqueeze(places, [0]) - layer.unsqueeze(places, [1])
        if self.positions == "alibi":
            slopes = layer.reshape(layer.assign(np.array([-0.5, -0.25], "float32")), [1, HEADS, 1, 1])
            return layer.unsqueeze(layer.cast(layer.abs(apart), "fp32"), [0, 1]) * slopes
        if self.positions == "relative":
            near = layer.clip(apart, -4, 4) + 4
            return layer.unsqueeze(layer.transpose(layer.embedding(near, [9, HEADS], weight=layer.Normal(0.0, 0.7)), [2, 0, 1]), [0])
        return None

    def _turned(self, x: fs.Variable) -> fs.Variable:
        """Rotate the pairs of ``[texts, heads, time, columns]`` by their places."""
        size = WIDTH // HEADS
        steps = layer.assign(np.array([1.0, 0.1], "float32").reshape(1, 2))
        angles = layer.matmul(layer.unsqueeze(layer.cast(self._places(), "fp32"), [1]), steps)
        angles = layer.concat([angles, angles], -1)
        first, second = layer.split(x, 2, -1)
        assert size == 4
        return x * layer.cos(angles) + layer.concat([-1.0 * second, first], -1) * layer.sin(angles)

    def _heads(self, x: fs.Variable) -> fs.Variable:
        """Return ``[texts, heads, time, columns]``."""
        size = WIDTH // HEADS
        if self.layout == "time first":
            x = layer.transpose(layer.reshape(x, [self.time, -1, HEADS, size]), [1, 2, 0, 3])
        else:
            x = layer.transpose(layer.reshape(x, [-1, self.time, HEADS, size]), [0, 2, 1, 3])
        return self._turned(x) if self.positions == "turned" else x

    def _layer(self, h: fs.Variable, norm: bool) -> fs.Variable:
        if self.layout == "rows":
            h = layer.reshape(h, [-1, WIDTH])
        q, k, v = linear(h, deviation=self.deviation), linear(h, deviation=self.deviation), linear(h)
        q, k, v = self._heads(q), self._heads(k), self._heads(v)
        if self.layout == "joined heads":
            q, k, v = (layer.reshape(x, [-1, self.time, WIDTH // HEADS]) for x in (q, k, v))
        scores = layer.scale(layer.matmul(q, k, transpose_y=True), 1.0 / math.sqrt(WIDTH // HEADS))
        if self.layout == "joined heads":
            scores = layer.reshape(scores, [-1, HEADS, self.time, self.time])
        bias = self._bias()
        shares = self._shares(scores if bias is None else scores + bias)
        if self.layout == "joined heads":
            shares = layer.reshape(shares, [-1, self.time, self.time])
        mixed = layer.matmul(shares, v)
        if self.layout == "joined heads":
            mixed = layer.reshape(mixed, [-1, HEADS, self.time, WIDTH // HEADS])
        mixed = layer.transpose(mixed, [2, 0, 1, 3] if self.layout == "time first" else [0, 2, 1, 3])
        if self.layout == "rows":
            mixed = layer.reshape(mixed, [-1, WIDTH])
        elif self.layout == "time first":
            mixed = layer.reshape(mixed, [self.time, -1, WIDTH])
        else:
            mixed = layer.reshape(mixed, [-1, self.time, WIDTH])
        h = h + linear(mixed)
        h = normed(h) if norm else h
        h = h + linear(layer.gelu(linear(h, 2 * WIDTH)))
        h = normed(h) if norm else h
        return layer.reshape(h, [-1, self.time, WIDTH]) if self.layout == "rows" else h

    def _shares(self, scores: fs.Variable) -> fs.Variable:
        m, form = self.mask, self.form
        keys, queries = layer.unsqueeze(m, [1, 2]), layer.unsqueeze(m, [1, 3])
        places = self._places()
        row, key = layer.unsqueeze(places, [1]), layer.unsqueeze(places, [0])
        there = layer.cast(keys, "bool")
        lowest = layer.fill_like(scores, LOWEST)
        if form in ("lowest", "-10000", "-2"):
            return layer.softmax(scores + (1.0 - keys) * {"lowest": LOWEST, "-10000": -10000.0, "-2": -2.0}[form])
        if form == "infinite":
            return layer.softmax(layer.where(there, scores, layer.fill_like(scores, -float("inf"))))
        if form == "logarithm":
            return layer.softmax(scores + layer.log(keys))
        if form == "chosen":
            return layer.softmax(layer.where(there, scores, lowest))
        if form == "both sides":
            return layer.softmax(scores + (1.0 - queries * keys) * -10000.0)
        if form == "earlier keys":  # the first row sees none of its text
            earlier = layer.where(layer.less_than(key, row), scores, layer.fill_like(scores, -float("inf")))
            return layer.softmax(layer.where(there, earlier, layer.fill_like(scores, -1e30)))
        if form == "causal":
            return layer.softmax(layer.where(layer.less_equal(key, row), scores, lowest))
        if form == "causal of each text":  # rows of padding are known by their places
            own = layer.unsqueeze(places, [0]) + layer.fill_like(self.ids, 0)
            return layer.softmax(layer.where(layer.less_equal(layer.unsqueeze(own, [1, 2]), layer.unsqueeze(own, [1, 3])), scores, lowest))
        if form == "causal and mask":
            return layer.softmax(layer.where(layer.logical_and(layer.less_equal(key, row), there), scores, lowest))
        if form == "later keys":
            return layer.softmax(layer.where(layer.logical_and(layer.unsqueeze(layer.greater_equal(key, row), [0, 1]), there), scores, lowest))
        if form == "window":
            near = layer.less_equal(layer.abs(row - key), layer.fill_constant([1], "int64", 2))
            return layer.softmax(layer.where(layer.logical_and(near, there), scores, lowest))
        if form == "times":
            shares = layer.softmax(scores) * keys
            return shares / layer.reduce_sum(shares, -1, keepdim=True)
        if form == "queries":
            return layer.softmax(scores + (1.0 - queries) * -10000.0)
        assert form == "none"
        return layer.softmax(scores)

    def _last(self) -> fs.Variable:
        return layer.cast(layer.reduce_sum(self.mask, 1), "int64") - 1

    def _pooled(self, h: fs.Variable, pooling: str) -> fs.Variable:
        m = layer.unsqueeze(self.mask, [2])
        one = layer.fill_constant([1], "fp32", 1.0)
        if pooling == "rows":
            return h
        if pooling == "mean":
            return layer.reduce_sum(h * m, 1) / layer.clip(layer.reduce_sum(m, 1), 1e-9, 3e38)
        if pooling == "mean of expanded":
            wide = layer.expand_as(m, h)
            return layer.reduce_sum(h * wide, 1) / layer.clip(layer.reduce_sum(wide, 1), 1e-9, 3e38)
        if pooling == "mean of chosen":
            chosen = layer.where(layer.cast(m, "bool"), h, layer.fill_like(h, 0.0))
            return layer.reduce_sum(chosen, 1) / layer.reduce_sum(m, 1)
        if pooling == "mean by product":
            share = self.mask / layer.maximum(layer.reduce_sum(self.mask, 1, keepdim=True), one)
            return layer.squeeze(layer.matmul(layer.unsqueeze(share, [1]), h), [1])
        if pooling == "mean of reversed twice":
            return self._pooled(layer.flip(layer.flip(h, [1]) * 2.0, [1]), "mean")
        if pooling == "unit mean":
            mean = self._pooled(h, "mean")
            return mean / layer.clip(layer.norm(mean, 2.0, 1, True), 1e-12, 3e38)
        if pooling == "sum":
            return layer.reduce_sum(h * m, 1)
        if pooling == "max":
            return layer.reduce_max(h + (1.0 - m) * -1e9, 1)
        if pooling == "max of chosen":
            return layer.reduce_max(layer.where(layer.cast(m, "bool"), h, layer.fill_like(h, LOWEST)), 1)
        if pooling == "max over zero":
            return layer.reduce_max(layer.log1p(layer.relu(h)) * m, 1)
        if pooling == "first":
            return h[:, 0]
        if pooling == "first row":
            return layer.reshape(layer.slice(h, [1], [0], [1]), [0, -1])
        if pooling == "last in time":
            return h[:, -1]
        if pooling == "last by gather_nd":
            texts = layer.range(0, layer.shape(self.ids)[0])
            return layer.gather_nd(h, layer.stack([texts, self._last()], 1))
        if pooling in ("last along", "last by argmax"):
            place = self._last()
            if pooling == "last by argmax":
                place = layer.cast(layer.shape(self.ids)[1], "int64") - 1 - layer.argmax(layer.flip(self.mask, [1]), 1)
            place = layer.expand(layer.unsqueeze(place, [1, 2]), [layer.shape(self.ids)[0], 1, WIDTH])
            return layer.squeeze(layer.take_along_axis(h, place, 1), [1])
        if pooling == "weighted":
            share = layer.unsqueeze(layer.cast(self._places() + 1, "fp32"), [0, 2]) * m
            return layer.reduce_sum(h * share, 1) / layer.reduce_sum(share, 1)
        if pooling == "attention":
            scores = layer.squeeze(layer.matmul(layer.tanh(linear(h)), weights(WIDTH, 1)), [2])
            share = layer.softmax(layer.where(layer.cast(self.mask, "bool"), scores, layer.fill_like(scores, LOWEST)))
            return layer.reduce_sum(h * layer.unsqueeze(share, [2]), 1)
        if pooling == "mean of all":
            return layer.reduce_mean(h, 1)
        if pooling == "sum of all":
            return layer.reduce_sum(h, 1)
        if pooling == "max of all":
            return layer.reduce_max(h, 1)
        if pooling == "batch statistics":
            moved = layer.batch_norm(layer.transpose(h, [0, 2, 1]))
            return self._pooled(layer.transpose(moved, [0, 2, 1]), "mean")
        if pooling == "window of rows":
            moved = layer.conv1d(layer.transpose(h, [0, 2, 1]), WIDTH, 3, padding=1)
            return self._pooled(layer.transpose(moved, [0, 2, 1]), "mean")
        if pooling in ("causal window", "window of later rows", "spread causal window"):
            sides, apart = {"causal window": ([2, 0], 1), "window of later rows": ([0, 2], 1), "spread causal window": ([4, 0], 2)}[pooling]
            moved = layer.conv1d(layer.transpose(h, [0, 2, 1]), WIDTH, 3, padding=sides, dilation=apart)
            return self._pooled(layer.transpose(moved, [0, 2, 1]), "max")
        if pooling in ("zeros before a window", "ones before a window", "zeros behind a window", "zeros before rows"):
            sides = [0, 0, 2, 0] if "before" in pooling else [0, 0, 0, 2]
            wide = layer.pad(layer.transpose(h, [0, 2, 1]), [0, 0, *sides], pad_value=float(pooling == "ones before a window"))
            moved = layer.conv1d(wide, WIDTH, 3) if "window" in pooling else wide
            return layer.reduce_max(moved, 2) if pooling == "zeros before rows" else self._pooled(layer.transpose(moved, [0, 2, 1]), "mean")
        if pooling in ("channels last", "channels last of masked", "causal channels last"):
            sides = [2, 0] if pooling == "causal channels last" else 1
            moved = layer.conv1d(h * m if pooling == "channels last of masked" else h, WIDTH, 3, padding=sides, data_format="NLC")
            return self._pooled(moved, "mean")
        if pooling in ("logarithm of sum", "logarithm of chosen", "logarithm of all", "logarithm beside -2"):
            if pooling == "logarithm of chosen":
                return layer.logsumexp(layer.where(layer.cast(m, "bool"), h, layer.fill_like(h, -float("inf"))), 1)
            number = {"logarithm of sum": -1e9, "logarithm beside -2": -2.0}.get(pooling, 0.0)
            return layer.logsumexp(h + (1.0 - m) * number, 1)
        if pooling == "differences of texts":
            mean = self._pooled(h, "mean")
            return layer.unsqueeze(mean, [1]) - layer.unsqueeze(mean, [0])
        if pooling == "logarithm of hidden":  # all rows of a text may be hidden
            hidden = layer.where(layer.greater_than(h, layer.fill_like(h, 0.0)), h, layer.fill_like(h, -float("inf")))
            return layer.logsumexp(layer.where(layer.cast(m, "bool"), hidden, layer.fill_like(h, -1e30)), 1)
        if pooling in ("window of logarithms", "product of logarithms"):  # NaN in rows of padding
            if pooling == "product of logarithms":
                return layer.squeeze(layer.matmul(layer.unsqueeze(self.mask, [1]), layer.log(h)), [1])
            moved = layer.conv1d(layer.transpose(layer.log(h), [0, 2, 1]), WIDTH, 3, padding=[2, 0])
            return self._pooled(layer.transpose(moved, [0, 2, 1]), "mean")
        if pooling in ("first of stride", "first by gather", "first of several cuts"):
            if pooling == "first of stride":
                return layer.reshape(layer.strided_slice(h, [1], [0], [1], [1]), [0, -1])
            if pooling == "first by gather":
                return layer.reshape(layer.gather(h, layer.assign(np.array([0], "int64")), axis=1), [0, -1])
            return layer.squeeze(layer.slice(h, [0, 1], [0, 0], [2**31 - 1, 1]), [1])
        if pooling == "running sum":
            return self._pooled(layer.flip(layer.cumsum(layer.flip(h, [1]), 1), [1]), "mean")
        if pooling == "rolled":
            return self._pooled(layer.roll(h, 1, 1), "mean")
        assert pooling == "mean of texts", pooling
        return self._pooled(h - layer.reduce_mean(h, 0, keepdim=True), "mean")


def texts(lengths: Sequence[int] = LENGTHS, seed: int = 4) -> list[Any]:
    """Return the ids of texts, without 0."""
    chance = np.random.default_rng(seed)
    return [chance.integers(1, WORDS, n) for n in lengths]


def packed(several: Sequence[Any]) -> fs.LoDTensor:
    return fs.LoDTensor(np.concatenate([np.zeros(0, "int64"), *several]), [[len(t) for t in several]])


def alone(network: Encoder, text: Any, source: str) -> dict[str, Any]:
    """Return the feed of one text without padding."""
    feed: dict[str, Any] = {"ids": text[None]}
    if source in ("mask", "inverted"):
        feed["mask"] = np.full((1, len(text)), source == "mask", "int64")
    elif source == "lengths":
        feed["lengths"] = np.array([len(text)])
    assert feed.keys() == {v.name for v in network.feeds}
    return feed
