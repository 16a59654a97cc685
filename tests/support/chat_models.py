"""A small language model with a tokenizer of bytes: its words are letters, and parts of the letter €."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

LLAMA = Path(__file__).parents[1] / "generation" / "data" / "llama"
TEMPLATE = """{% for message in messages %}
    {%- if message.role == 'system' and not loop.first %}
        {{ raise_exception('a system message comes first') }}
    {%- endif %}
<{{ message.role[0] }}>{{ message.content }}
{% endfor %}
{% if add_generation_prompt %}
<a>
{% endif %}"""
_FIXED = {9: "â", 19: "Ĥ", 35: "¬", 15: "a", 24: "b", 26: "c", 2: "Ġ", 7: "<|end|>"}
"""The first word of the folder's first text is a letter of three bytes, each a word."""
_REST = iter("defghijklmnopqrstuvwxyz|<>Ċ0123456789")
VOCABULARY = {_FIXED.get(number) or next(_REST): number for number in range(40)}


def byte_tokenizer(vocabulary: dict[str, int] = VOCABULARY) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def write_chat_model(folder: Path, **config: Any) -> Path:
    """A folder of a Llama with random weights, tokenizer.json and tokenizer_config.json; ``config``: its fields."""
    shutil.copytree(LLAMA, folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": TEMPLATE, **config}))
    return folder
