"""Writes expected_encoders.json with the transformers library (5.24): python tests/embedding/make_expected_encoders.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from encoder_cases import CASES, IDS, LABELS, TYPES, weight


def numbers(case: str) -> list[list[float]]:
    kind, settings = CASES[case]
    name = case.split()[0]
    labels = {} if name.endswith(("Model", "ForMaskedLM")) else {"num_labels": LABELS}
    config = transformers.AutoConfig.for_model(kind, **settings, **labels)
    config._attn_implementation = "eager"
    module: Any = getattr(transformers, name)(config).eval()
    base = module.base_model_prefix + "."
    with torch.no_grad():
        for key, value in module.named_parameters():
            value.copy_(torch.from_numpy(weight(key.removeprefix(base), value.shape)))
        if hasattr(module, "tie_weights"):
            module.tie_weights()
        out: list[list[float]] = []
        for ids, types in zip(IDS, TYPES, strict=True):
            feed = {"input_ids": torch.tensor([ids])}
            if getattr(config, "type_vocab_size", 0) > 1:
                feed["token_type_ids"] = torch.tensor([types])
            result = module(**feed)
            rows = (result.logits if hasattr(result, "logits") else result.last_hidden_state)[0]
            out += [rows.tolist()] if rows.dim() == 1 else [rows.mean(0).tolist(), rows[-1].tolist()]
    return [[round(x, 6) for x in row] for row in out]


Path(__file__).with_name("expected_encoders.json").write_text(
    "{\n" + ",\n".join(f"{json.dumps(case)}: {json.dumps(numbers(case))}" for case in CASES) + "\n}\n"
)
