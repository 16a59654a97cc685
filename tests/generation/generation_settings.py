"""Settings of ``generation_config.json``, the texts that transformers' ``generate`` writes with them, and its probabilities of draws.

python tests/generation/generation_settings.py    # writes generation_settings.json; needs transformers
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).with_suffix(".json")
FOLDER = Path(__file__).parent / "data" / "llama"
PROMPTS = json.loads((FOLDER / "texts.json").read_text())["prompts"][:6]
WORDS = 12
ENDS = {"eos_token_id": [7, 24, 4]}
CASES: dict[str, dict[str, Any]] = {
    "ends": ENDS,
    "no ends": {},
    "one end and other tokens": {"eos_token_id": 24, "bos_token_id": 1, "pad_token_id": 0, "transformers_version": "5.0.0"},
    "a penalty for repetition": {"repetition_penalty": 1.7},
    "a gain for repetition": {"repetition_penalty": 0.6},
    "no word twice": {"no_repeat_ngram_size": 1},
    "no two words twice": {"no_repeat_ngram_size": 2},
    "bad words": {"eos_token_id": 7, "bad_words_ids": [[24], [19, 3], [7]]},
    "biases": {"sequence_bias": [[[24], -3.5], [[4, 19], -30.0], [[5, 6, 7], 2.0]]},
    "suppressed words": {"suppress_tokens": [24, 4, 500]},
    "suppressed first words": {"begin_suppress_tokens": [9, 24, 19, 15, 36, 39]},
    "a forced second word, and suppressed behind it": {"begin_suppress_tokens": [9, 24, 19, 39, 4, 26], "forced_bos_token_id": 33},
    "a forced last word": {"forced_eos_token_id": [5, 9]},
    "at least 9 words": ENDS | {"min_new_tokens": 9},
    "at least 14 with the prompt": ENDS | {"min_length": 14},
    "at least 3, whatever the prompt": ENDS | {"min_length": 30, "min_new_tokens": 3},
    "ends grow": ENDS | {"exponential_decay_length_penalty": [2, 1.5]},
    "draws are off": {"do_sample": False, "temperature": 0.3, "top_k": 5, "top_p": 0.5},
    "the most words": {"max_new_tokens": 7},
    "the most words with the prompt": {"max_length": 36},
    "the most words, before those with the prompt": {"max_new_tokens": 7, "max_length": 36},
    "beams": ENDS | {"num_beams": 3},
    "beams that stop early": ENDS | {"num_beams": 3, "early_stopping": True, "length_penalty": 2.0},
    "beams that never stop early": ENDS | {"num_beams": 3, "early_stopping": "never", "length_penalty": 1.5},
    "beams for short texts": ENDS | {"num_beams": 4, "length_penalty": -1.0},
    "beams with much else": ENDS
    | {"num_beams": 3, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "min_new_tokens": 4, "renormalize_logits": True, "bad_words_ids": [[24]]},
}
DRAWS: dict[str, dict[str, Any]] = {
    "min_p": {"min_p": 0.2},
    "typical_p": {"typical_p": 0.6},
    "epsilon_cutoff": {"epsilon_cutoff": 0.05},
    "eta_cutoff": {"eta_cutoff": 0.3},
    "top_k, top_p": {"temperature": 0.7, "top_k": 9, "top_p": 0.8},
    "all": {"temperature": 1.3, "top_k": 9, "top_p": 0.95, "min_p": 0.05, "typical_p": 0.9, "epsilon_cutoff": 0.02, "eta_cutoff": 0.05},
    "by default": {},
}


def scores() -> np.ndarray:
    """Return the scores of the words to draw among; more than the usual 50."""
    return (np.random.RandomState(1).standard_normal(60) * 1.5).astype("float32")


def lasts(settings: dict[str, Any]) -> bool:
    """Tell whether settings say how long a text is."""
    return "max_length" in settings or "max_new_tokens" in settings


def main() -> None:
    import torch
    import transformers

    texts: dict[str, Any] = {}
    for name, settings in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(FOLDER, folder, dirs_exist_ok=True)
            (Path(folder) / "generation_config.json").write_text(json.dumps(settings))
            module = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        texts[name] = []
        for prompt in PROMPTS:
            of = torch.tensor([prompt])
            out = module.generate(of, attention_mask=torch.ones_like(of), **({} if lasts(settings) else {"max_new_tokens": WORDS}))
            texts[name].append(out[0, len(prompt) :].tolist())
    draws: dict[str, Any] = {}
    for name, settings in DRAWS.items():
        config = transformers.GenerationConfig(**({"temperature": 1.0, "top_k": 50} | settings), do_sample=True)
        config._eos_token_tensor = None
        row: Any = torch.tensor(scores())[None]
        changed = module._get_logits_processor(config, 1)(torch.zeros(1, 1, dtype=torch.int64), row)
        draws[name] = [round(float(p), 4) for p in changed.softmax(-1)[0]]
    names = sorted(vars(transformers.GenerationConfig()))
    FILE.write_text(json.dumps({"texts": texts, "draws": draws, "names": names}) + "\n")


if __name__ == "__main__":
    main()
