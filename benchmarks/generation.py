"""`fs.generate` beside transformers' `generate`: words a second of the same networks with random weights, taking turns, with two threads.

    python benchmarks/generation.py [--networks gpt2-small,llama-small] [--batches 1,8,32] [--words 32] [--rounds 3]

Prompts are of mixed lengths (log-normal, 5 to 300 words); transformers pads them on the left, as its documentation says. All texts are as long
as asked for. Needs transformers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch
import transformers

import foreshape as fs

ENDLESS = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": 0}
NETWORKS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(**ENDLESS)),
    "gpt2-small": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=5000, n_embd=256, n_layer=6, n_head=8, **ENDLESS)),
    "llama-small": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=32000,
            hidden_size=512,
            intermediate_size=1408,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=1024,
            **ENDLESS,
        )
    ),
}


def measured(name: str, batch: int, words: int, rounds: int) -> tuple[list[float], list[float], int]:
    """Seconds of transformers and of `fs.generate`, round by round, and the number of equal texts."""
    torch.manual_seed(0)
    module: Any = NETWORKS[name]().eval()
    random = np.random.RandomState(batch)
    lengths = [32] if batch == 1 else np.clip(np.exp(3.6 + 0.8 * random.standard_normal(batch)), 5, 300).astype(int)
    prompts = [random.randint(1, module.config.vocab_size, n).tolist() for n in lengths]
    longest = max(lengths)
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    model = fs.language_model(module, users=batch, context=512)

    def theirs() -> list[list[int]]:
        with torch.no_grad():
            return module.generate(ids, attention_mask=mask, max_new_tokens=words, do_sample=False)[:, longest:].tolist()

    def ours() -> list[list[int]]:
        return fs.generate(model, prompts, words)

    equal = sum(a == b for a, b in zip(theirs(), ours(), strict=True))
    seconds: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for of, run in zip(seconds, (theirs, ours), strict=True):
            begin = time.perf_counter()
            run()
            of.append(time.perf_counter() - begin)
    return *seconds, equal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--networks", default="gpt2-small,llama-small")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--words", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    print("network       texts  equal  words/s here  words/s transformers  ratio")
    for name in given.networks.split(","):
        for batch in map(int, given.batches.split(",")):
            theirs, ours, equal = measured(name, batch, given.words, given.rounds)
            of, beside = (batch * given.words / statistics.median(s) for s in (ours, theirs))
            print(f"{name:12}  {batch:5}  {equal:5}  {of:12.0f}  {beside:20.0f}  {of / beside:5.2f}", flush=True)


if __name__ == "__main__":
    main()
