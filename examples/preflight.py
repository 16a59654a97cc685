"""A forecast before the launch: will this training fit on that GPU, and which batch dies? No GPU is needed.

    pip install -e '.[train]'
    python examples/preflight.py [--device H100-80GB] [--tokens 65536] [--batches 100] [--width 768] [--layers 12] [--precision amp-bf16]

A small GPT is trained on texts of very different lengths, in batches with a token budget: few long texts, or many short ones. The lengths are drawn from a
heavy-tailed distribution, as those of web pages are. The script prints the forecast, and ends with 1 where the run does not fit, so that a job for a
cluster can begin with it. `foreshape preflight` does the same for a function of yours:

    foreshape preflight preflight:gpt --device H100-80GB --lengths lengths.txt
"""

import argparse
import random

import torch

import foreshape as fs

WORDS = 50304


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // 64)
        self.before, self.behind = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(torch.nn.functional.gelu(self.up(self.behind(x))))


class GPT(torch.nn.Module):
    def __init__(self, width=768, layers=12, longest=8192):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(WORDS, width), torch.nn.Embedding(longest, width)
        self.blocks = torch.nn.ModuleList(Block(width) for _ in range(layers))
        self.last, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, WORDS, bias=False)

    def forward(self, words):
        x = self.words(words) + self.places.weight[: words.shape[1]]
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.last(x))
        return torch.nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def batch(size, length):
    """What the data loader gives: the numbers of words, [size, length]."""
    return torch.zeros(size, length, dtype=torch.int64)


def gpt():
    """For `foreshape preflight`: the class makes the module, which takes no memory then."""
    return GPT, batch


def batches(tokens, count=400, longest=8192, seed=0):
    """Pairs of a number of texts and the length of the longest of them, each within a token budget."""
    draw = random.Random(seed)
    lengths = [min(longest, 8 * max(2, round(draw.lognormvariate(5.5, 1.2) / 8))) for _ in range(count * 16)]
    out, group = [], []
    for length in lengths:
        if group and (len(group) + 1) * max(*group, length) > tokens:
            out.append((len(group), max(group)))
            group = []
        group.append(length)
    return [*out, (len(group), max(group))][:count]


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Forecast the memory of a training run on a GPU.")
    parser.add_argument("--device", default="H100-80GB")
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--precision", default="amp-bf16")
    options = parser.parse_args(arguments)
    for name in ("tokens", "batches", "width", "layers"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} is at least 1")
    sizes = batches(options.tokens, options.batches)
    try:
        forecast = fs.forecast(lambda: GPT(options.width, options.layers), batch, lengths=sizes, device=options.device, precision=options.precision)
    except fs.SchemaError as error:
        parser.error(str(error))
    print(forecast)
    return 0 if forecast.fits else 1


if __name__ == "__main__":
    raise SystemExit(main())
