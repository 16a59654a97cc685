"""The heads of encoders: scores of a text, of each word, and over all words."""

from __future__ import annotations

from collections.abc import Callable

from foreshape import layer
from foreshape.apps.embedding.encoder_network import EncoderNetwork, activation_named
from foreshape.errors import SchemaError
from foreshape.language.program import Variable


def first_rows(n: EncoderNetwork) -> Variable:
    return layer.sequence_first_step(n.rows)


def plain_labels(n: EncoderNetwork, labels: int) -> Variable:
    return n.linear(n.rows, labels, "classifier")


def pooled_score(pooler: str, activation: str = "tanh") -> Callable[[EncoderNetwork, int], Variable]:
    def head(n: EncoderNetwork, labels: int) -> Variable:
        name = n.config.get("pooler_hidden_act", activation) if activation == "pooler_hidden_act" else activation
        return n.linear(n.linear(first_rows(n), n.width, pooler, activation=activation_named(name)), labels, "classifier")

    return head


def two_layers(activation: str) -> Callable[[EncoderNetwork, int], Variable]:
    def head(n: EncoderNetwork, labels: int) -> Variable:
        return n.linear(n.linear(first_rows(n), n.width, "classifier.dense", activation=activation_named(activation)), labels, "classifier.out_proj")

    return head


def modernbert_row(n: EncoderNetwork, x: Variable) -> Variable:
    bias = n.size("classifier_bias", default=False)
    dense = n.linear(x, n.width, "head.dense", bias, n.activation("classifier_activation", default="gelu"))
    return n.norm(dense, "head.norm", n.size("norm_bias", default=False))


def modernbert_score(n: EncoderNetwork, labels: int) -> Variable:
    pooled = layer.sequence_pool(n.rows, "average") if n.size("classifier_pooling", default="cls") == "mean" else first_rows(n)
    return n.linear(modernbert_row(n, pooled), labels, "classifier")


def last_score(n: EncoderNetwork, labels: int) -> Variable:
    return n.linear(layer.sequence_last_step(n.rows), labels, "score", False)


def row_scores(n: EncoderNetwork, labels: int) -> Variable:
    return n.linear(n.rows, labels, "score")


def word_scores(dense: str, norm: str, table: str, bias: str, activation: str = "") -> Callable[[EncoderNetwork, int], Variable]:
    """Return the head of masked words: a product, an activation and a normalization, then the table of words as the output layer."""

    def head(n: EncoderNetwork, labels: int) -> Variable:
        if not n.size("tie_word_embeddings", default=True):
            raise SchemaError("an output layer of words beside the table of words is not known here")
        width = n.size("embedding_size", default=n.width)
        how = activation_named(activation) if activation else n.activation("hidden_act", "activation", default="gelu")
        x = n.norm(n.linear(n.rows, width, dense, activation=how), norm)
        return to_words(n, x, width, table, bias)

    return head


def to_words(n: EncoderNetwork, x: Variable, width: int, table: str, bias: str) -> Variable:
    words = n.size("vocab_size")
    scores = layer.matmul(x, layer.create_parameter([words, width], "fp32", f"{table}.weight"), transpose_y=True)
    return scores + layer.create_parameter([words], "fp32", bias, is_bias=True)


def modernbert_words(n: EncoderNetwork, labels: int) -> Variable:
    return to_words(n, modernbert_row(n, n.rows), n.width, "embeddings.tok_embeddings", "decoder.bias")
