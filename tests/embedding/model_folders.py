"""Small folders of sentence-transformers, written here: a BERT with random weights and a tokenizer of a few words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from test_encoders import write_folder
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

_WORDS = "[PAD] [UNK] [CLS] [SEP] the ship left harbour at dawn a row of numbers and mask query : find text , one two three A"
VOCABULARY = _WORDS.split(" ")
TEXTS = ["the ship left the harbour", "", "a", "one two three " * 12, "[SEP] of numbers", "dawn", "A ship", "the ship left the harbour at dawn and a mask"]


def write_tokenizer(folder: Path, **config: Any) -> None:
    """A tokenizer.json which cuts at 6 words and pads to 9 on its own: both are to be turned off."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.enable_truncation(6)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", "model_max_length": 30, **config}))


def write_json(file: Path, value: Any) -> None:
    file.parent.mkdir(exist_ok=True, parents=True)
    file.write_text(json.dumps(value))


def write_model(
    folder: Path, pooling: Any = None, *more: str, case: str = "BertModel", settings: Any = None, texts: Any = None, tokenizer: Any = None, **changed: Any
) -> Path:
    """A folder with modules: Transformer, Pooling (its configuration) and others by their class."""
    write_folder(folder, case, **changed)
    write_tokenizer(folder, **(tokenizer or {}))
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    for name in (*(["Pooling"] if pooling is not None else []), *more):
        modules.append(
            {"idx": len(modules), "name": name, "path": f"{len(modules)}_{name}", "type": f"sentence_transformers.base.modules.{name.lower()}.{name}"}
        )
    write_json(folder / "modules.json", modules)
    if pooling is not None:
        write_json(folder / "1_Pooling" / "config.json", pooling)
    if settings is not None:
        write_json(folder / "sentence_bert_config.json", settings)
    if texts is not None:
        write_json(folder / "config_sentence_transformers.json", texts)
    return folder


def write_dense(folder: Path, rows: int, columns: int, activation: str) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(exist_ok=True)
    numbers = np.random.RandomState(2).randn(columns, rows + 1).astype("float32")
    weight, bias = np.ascontiguousarray(numbers[:, 1:]), np.ascontiguousarray(numbers[:, 0])
    save_file({"linear.weight": weight, "linear.bias": bias}, folder / "model.safetensors")
    write_json(
        folder / "config.json", {"in_features": rows, "out_features": columns, "bias": True, "activation_function": f"torch.nn.modules.activation.{activation}"}
    )
    return weight, bias
