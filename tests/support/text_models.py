"""Small models of texts, untrained, for pages that open trained ones."""

from __future__ import annotations

import csv
import inspect
import json
import os
import shutil
import statistics
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

WORDS = 3000
"""The words of the tokenizer, from the help texts of some modules."""


def write_text_models(folder: Path) -> None:
    """Write the embedder and the reranker of the recipes: all-MiniLM-L6-v2 and ms-marco-MiniLM-L6-v2."""
    write_text_model(folder / "all-MiniLM-L6-v2")
    from test_encoders import write_folder

    reranker = folder / "ms-marco-MiniLM-L6-v2"
    write_folder(reranker, "BertForSequenceClassification", vocab_size=WORDS, max_position_embeddings=512, id2label={"0": "score"})
    shutil.copy(folder / "all-MiniLM-L6-v2" / "tokenizer.json", reranker)


def write_text_model(folder: Path, width: int = 64) -> None:
    """Write an embedder: a text's vector is the mean of random vectors of its words, so texts of equal words are alike."""
    pytest.importorskip("tokenizers", reason="the extra embed")
    sys.path.append(str(Path(__file__).parents[1] / "embedding"))
    from model_folders import write_model
    from safetensors.numpy import load_file, save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    write_model(folder, {"pooling_mode": "mean"}, "Normalize", vocab_size=WORDS, hidden_size=width, intermediate_size=64, num_hidden_layers=1)
    weights, draw = load_file(folder / "model.safetensors"), np.random.default_rng(0)
    for name, value in weights.items():
        value[...] = draw.standard_normal(value.shape) if "word_embeddings" in name else float("LayerNorm.weight" in name)
    save_file(weights, folder / "model.safetensors")
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    help_texts = [text for module in (csv, json, os, shutil, statistics, textwrap) for part in vars(module).values() if (text := inspect.getdoc(part))]
    tokenizer.train_from_iterator(help_texts, trainers.BpeTrainer(vocab_size=WORDS, special_tokens=["[UNK]"], show_progress=False))
    tokenizer.save(str(folder / "tokenizer.json"))
