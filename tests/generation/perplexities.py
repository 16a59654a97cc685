"""Texts, and the losses that transformers computes for them in strided windows, as its page on perplexity says.

python tests/generation/perplexities.py    # writes perplexities.json; needs transformers
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
DATA = Path(__file__).parent / "data"
KINDS = ("gpt2", "llama", "qwen2")
STRIDES = (63, 32, 9)
_CONTEXT = 64


def texts() -> list[list[int]]:
    """Return texts shorter and longer than the context."""
    draw = random.Random(0)
    return [[draw.randrange(40) for _ in range(count)] for count in (5, 64, 63, 200, 1, 65, 130)]


def main() -> None:
    import torch
    import transformers

    losses: dict[str, Any] = {}
    for kind in KINDS:
        module = transformers.AutoModelForCausalLM.from_pretrained(DATA / kind, dtype=torch.float32).eval()
        losses[kind] = {}
        for stride in STRIDES:
            total, count = 0.0, 0
            for text in texts():
                before = 0
                for begin in range(0, len(text), stride):
                    end = min(begin + _CONTEXT, len(text))
                    words = torch.tensor([text[begin:end]])
                    labels = words.clone()
                    labels[:, : before - begin] = -100
                    if predicted := int((labels[:, 1:] != -100).sum()):
                        with torch.no_grad():
                            total += float(module(words, labels=labels).loss) * predicted
                        count += predicted
                    before = end
                    if end == len(text):
                        break
            losses[kind][stride] = {"loss": total / count, "words": count}
    FILE.write_text(json.dumps(losses) + "\n")


if __name__ == "__main__":
    main()
