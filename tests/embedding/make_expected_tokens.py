"""Writes the numbers of tokens of transformers into expected_tokens.json: python make_expected_tokens.py, with transformers, sentencepiece and protobuf."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tokenizer_folders import PAIRS, TEXTS, cases, write_tokenizer_folder
from transformers import AutoTokenizer

FILE = Path(__file__).with_name("expected_tokens.json")


def main() -> None:
    out = {"character_map": json.loads(FILE.read_text())["character_map"]}
    for case in cases():
        with tempfile.TemporaryDirectory() as folder:
            write_tokenizer_folder(Path(folder), case)
            tokenizer = AutoTokenizer.from_pretrained(folder)
            assert type(tokenizer).__name__ == case.split()[0], type(tokenizer)
            pairs = [tokenizer(a, b) for a, b in PAIRS]
            out[case] = {
                "texts": [tokenizer(text)["input_ids"] for text in TEXTS],
                "pairs": [pair["input_ids"] for pair in pairs],
                "types": [pair.get("token_type_ids", [0] * len(pair["input_ids"])) for pair in pairs],
            }
    FILE.write_text("{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in out.items()) + "\n}\n")


if __name__ == "__main__":
    main()
