"""Small language networks of paddlenlp with drawn parameters; see `paddle_networks`.

``NETWORKS[name]()`` gives a layer, its inputs with an open batch and open lengths, and arrays for each of two or three sizes. Only
``paddlenlp.transformers`` is imported, and not the whole package, which brings data sets, servers and their requirements with it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
from paddle_layers_of import LAYERS

WORDS = 60
SIZES = ((2, 7), (3, 5), (1, 11))
"""Batch and length."""


def transformers() -> Any:
    """The module ``paddlenlp.transformers``.

    Raises:
        ModuleNotFoundError: paddlenlp, or what it needs, is not installed.
    """
    if "paddlenlp" not in sys.modules:
        found = importlib.util.find_spec("paddlenlp")
        if found is None or found.submodule_search_locations is None:
            raise ModuleNotFoundError("paddlenlp is not installed")
        package = types.ModuleType("paddlenlp")
        package.__path__ = list(found.submodule_search_locations)
        package.__version__ = importlib.metadata.version("paddlenlp")
        sys.modules["paddlenlp"] = package
        importlib.import_module("paddlenlp.data")  # it and the transformers import each other, and this is the way round that works
    return importlib.import_module("paddlenlp.transformers")


Network = tuple[Any, list[Any], list[list[np.ndarray]]]
NETWORKS: dict[str, Callable[[], Network]] = {}


def words(rng: np.random.RandomState, batch: int, length: int) -> np.ndarray:
    return rng.randint(3, WORDS, (batch, length)).astype("int64")


def types_of(rng: np.random.RandomState, batch: int, length: int) -> np.ndarray:
    return np.sort(rng.randint(0, 2, (batch, length)), 1).astype("int64")


def mask(rng: np.random.RandomState, batch: int, length: int) -> np.ndarray:
    """The first words of each row, at least one."""
    return (np.arange(length) <= rng.randint(0, length, (batch, 1))).astype("int64")


DRAWN = {"input_ids": words, "decoder_input_ids": words, "token_type_ids": types_of, "attention_mask": mask}
LONGER = {"decoder_input_ids": 3}


def keep(name: str, inputs: str, make: Callable[[Any], Any], **fixed: Any) -> None:
    """A network, the inputs that it is called with, by name, and what else."""
    names = inputs.split()

    def build() -> Network:
        import paddle

        feeds = [[DRAWN[n](np.random.RandomState(7 * at + len(n)), b, t + LONGER.get(n, 0)) for n in names] for at, (b, t) in enumerate(SIZES)]
        specs = [paddle.static.InputSpec([None, None], "int64", n) for n in names]
        return LAYERS[len(names)](make(transformers()), names, fixed), specs, feeds

    NETWORKS[name] = build


SHAPE = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "max_position_embeddings": 40}
IDS, TYPED, MASKED, ALL = "input_ids", "input_ids token_type_ids", "input_ids attention_mask", "input_ids token_type_ids attention_mask"
BOTH = "input_ids decoder_input_ids"


keep("BertModel", ALL, lambda t: t.BertModel(t.BertConfig(**SHAPE)))
keep("BertForSequenceClassification", TYPED, lambda t: t.BertForSequenceClassification(t.BertConfig(**SHAPE, num_labels=3)))
keep("BertForMaskedLM", IDS, lambda t: t.BertForMaskedLM(t.BertConfig(**SHAPE)))
keep("BertForPretraining", TYPED, lambda t: t.BertForPretraining(t.BertConfig(**SHAPE)))
keep("BertForQuestionAnswering", TYPED, lambda t: t.BertForQuestionAnswering(t.BertConfig(**SHAPE)))
keep("ErnieModel", TYPED, lambda t: t.ErnieModel(t.ErnieConfig(**SHAPE, task_type_vocab_size=3, use_task_id=True)))
keep("ErnieForTokenClassification", TYPED, lambda t: t.ErnieForTokenClassification(t.ErnieConfig(**SHAPE, num_labels=5)))
keep("ErnieMModel", IDS, lambda t: t.ErnieMModel(t.ErnieMConfig(**SHAPE)))


def unread(module: str, layer: str) -> None:
    """A part which ``to_static`` cannot read (it calls ``super()``, or returns from two places) is called as it is."""
    import paddle

    part = getattr(importlib.import_module(f"paddlenlp.transformers.{module}.modeling"), layer)
    part.forward = paddle.jit.not_to_static(part.forward)


def gpt(t: Any, kind: str) -> Any:
    unread("gpt", "GPTLayerNorm")
    return getattr(t, kind)(t.GPTConfig(**SHAPE))


def llama(t: Any, kind: str, **more: Any) -> Any:
    unread("llama", "LlamaRMSNorm")
    unread("llama", "LlamaMLP")
    return getattr(t, kind)(t.LlamaConfig(**LLAMA, **more))


keep("GPTModel", IDS, lambda t: gpt(t, "GPTModel"))
keep("GPTLMHeadModel", IDS, lambda t: gpt(t, "GPTLMHeadModel"))
keep("GPTWithCache", IDS, lambda t: gpt(t, "GPTModel"), use_cache=True)
T5 = {"vocab_size": WORDS, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
keep("T5Model", BOTH, lambda t: t.T5Model(t.T5Config(**T5)))
keep(
    "T5ForConditionalGeneration",
    "input_ids attention_mask decoder_input_ids",
    lambda t: t.T5ForConditionalGeneration(t.T5Config(**T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
)
keep("T5Encoder", IDS, lambda t: t.T5EncoderModel(t.T5Config(**T5, use_cache=False)))
keep("RobertaModel", TYPED, lambda t: t.RobertaModel(t.RobertaConfig(**SHAPE, pad_token_id=1)))
keep("ElectraModel", TYPED, lambda t: t.ElectraModel(t.ElectraConfig(**SHAPE, embedding_size=16)))
keep("AlbertModel", TYPED, lambda t: t.AlbertModel(t.AlbertConfig(**SHAPE, embedding_size=16, num_hidden_groups=1, inner_group_num=1)))
keep("DistilBertModel", IDS, lambda t: t.DistilBertModel(t.DistilBertConfig(**SHAPE)))
keep("TinyBertModel", TYPED, lambda t: t.TinyBertModel(t.TinyBertConfig(**SHAPE)))
keep("MPNetModel", IDS, lambda t: t.MPNetModel(t.MPNetConfig(**SHAPE)))
keep("RoFormerModel", TYPED, lambda t: t.RoFormerModel(t.RoFormerConfig(**SHAPE, embedding_size=32)))
keep("FNetModel", TYPED, lambda t: t.FNetModel(t.FNetConfig(**SHAPE)))
keep("ConvBertModel", TYPED, lambda t: t.ConvBertModel(t.ConvBertConfig(**SHAPE, embedding_size=32)))
keep("XLNetModel", IDS, lambda t: t.XLNetModel(t.XLNetConfig(vocab_size=WORDS, d_model=32, n_layer=2, n_head=4, d_head=8, d_inner=48)))
BART = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 40,
}
keep("BartModel", BOTH, lambda t: t.BartModel(t.BartConfig(**BART)))
keep("MBartModel", BOTH, lambda t: t.MBartModel(t.MBartConfig(**BART)))
keep("PegasusModel", BOTH, lambda t: t.PegasusModel(t.PegasusConfig(**BART)))
LLAMA = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 40,
    "use_flash_attention": False,
    "seq_length": 40,
}
keep("LlamaModel", MASKED, lambda t: llama(t, "LlamaModel", num_key_value_heads=2))
keep("LlamaForCausalLM", IDS, lambda t: llama(t, "LlamaForCausalLM"))
keep("OPTModel", IDS, lambda t: t.OPTModel(t.OPTConfig(**SHAPE, word_embed_proj_dim=32)))
keep("BloomModel", MASKED, lambda t: t.BloomModel(t.BloomConfig(vocab_size=WORDS, hidden_size=32, n_layer=2, n_head=4, use_flash_attention=False)))

Described = tuple[Any, dict[str, np.ndarray]]
TRAINING: dict[str, Callable[[], Described]] = {}


def train(name: str, make: Callable[[Any], Any], outputs: Callable[[Any, Any], Any], most: int, per_word: bool, optimizer: Callable[[Any], Any]) -> None:
    """A network for training on words with an open batch and length, with labels below ``most``, one for each row or each word."""

    def describe() -> Described:
        import paddle
        import paddle.nn.functional as F

        ids = paddle.static.data("input_ids", [-1, -1], "int64")
        labels = paddle.static.data("labels", [-1, -1] if per_word else [-1], "int64")
        network = make(transformers())
        network.train()
        loss = F.cross_entropy(outputs(network, ids), paddle.unsqueeze(labels, -1))
        optimizer(paddle.optimizer).minimize(loss)
        rng = np.random.RandomState(3)
        return loss, {"input_ids": words(rng, 3, 7), "labels": rng.randint(0, most, (3, 7) if per_word else (3,)).astype("int64")}

    TRAINING[name] = describe


STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def bert(t: Any, **more: Any) -> Any:
    return t.BertForSequenceClassification(t.BertConfig(**SHAPE, num_labels=3, **more))


def clipped(o: Any) -> Any:
    import paddle

    return o.AdamW(0.001, epsilon=1e-5, weight_decay=0.01, grad_clip=paddle.nn.ClipGradByGlobalNorm(1.0))


train("BERT_Adam", lambda t: bert(t, **STILL), lambda net, ids: net(ids), 3, False, lambda o: o.Adam(0.001, epsilon=1e-5))
train("BERT_AdamW_clip", lambda t: bert(t, **STILL), lambda net, ids: net(ids), 3, False, clipped)
train("BERT_dropout", bert, lambda net, ids: net(ids), 3, False, lambda o: o.AdamW(0.001, epsilon=1e-5))
train(
    "ERNIE_Adam",
    lambda t: t.ErnieForTokenClassification(t.ErnieConfig(**SHAPE, num_labels=5, **STILL)),
    lambda net, ids: net(ids),
    5,
    True,
    lambda o: o.Adam(0.001, epsilon=1e-5),
)
train("GPT_AdamW", lambda t: t.GPTLMHeadModel(t.GPTConfig(**SHAPE, **STILL)), lambda net, ids: net(ids), WORDS, True, clipped)
train("GPT_dropout", lambda t: t.GPTLMHeadModel(t.GPTConfig(**SHAPE)), lambda net, ids: net(ids), WORDS, True, clipped)
