"""Read Python without a grammar: a conditional random field over ragged lines of the standard library tags each character as part of a
keyword, a name, a number, a string, a comment, or of none of them. What a character is, its neighbours alone do not tell: the words in
a string look like names, and a quote that opens a string looks like the one that closes it.

    python examples/tagger.py [FOLDER] [EPOCHS]
"""

import io
import keyword
import os
import sys
import tokenize
from pathlib import Path

import numpy as np

import foreshape as fs
from foreshape import layer

folder = sys.argv[1] if len(sys.argv) > 1 else "."
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 5

KINDS = ["keyword", "name", "number", "string", "comment"]
OUTSIDE = 2 * len(KINDS)  # IOB: 2 * kind where a token begins, 2 * kind + 1 inside of it, and this between tokens


def kind_of(token):
    if token.type == tokenize.NAME:
        return 0 if keyword.iskeyword(token.string) else 1
    return {tokenize.NUMBER: 2, tokenize.STRING: 3, tokenize.COMMENT: 4}.get(token.type)


def tagged_lines(path):
    """The lines of a file without indentation, each with a tag per character. Lines in longer strings are left out."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    tags = [[OUTSIDE] * len(line) for line in lines]
    left_out, opened = set(), []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        kind, begin, end = kind_of(token), token.start, token.end
        name = tokenize.tok_name[token.type]
        if name == "FSTRING_START":  # from Python 3.12 on an f-string is many tokens
            opened.append(begin)
        elif name == "FSTRING_END":
            kind, begin = 3, opened.pop()
        if kind is None or opened:
            continue
        if begin[0] != end[0]:
            left_out.update(range(begin[0] - 1, end[0]))
        else:
            tags[begin[0] - 1][begin[1] : end[1]] = [2 * kind] + [2 * kind + 1] * (end[1] - begin[1] - 1)
    for at, (line, tag) in enumerate(zip(lines, tags, strict=True)):
        skip = len(line) - len(line.lstrip())
        if at not in left_out and skip < len(line) <= 100:
            yield line[skip:], tag[skip:]


def ragged(lines):
    """Characters and tags of all lines, packed, with the lengths of the lines."""
    lengths = [[len(line) for line, _ in lines]]
    characters = np.array([min(ord(c), 127) for line, _ in lines for c in line])
    tags = np.array([t for _, tag in lines for t in tag])[:, None]
    return {"characters": fs.LoDTensor(characters, lengths), "tags": fs.LoDTensor(tags, lengths)}


# Every fifth file is held out.
files = sorted(Path(os.__file__).parent.glob("*.py"))
files = [files[i] for i in np.random.RandomState(0).permutation(len(files))]
train = [line for i, file in enumerate(files) if i % 5 for line in tagged_lines(file)][:12000]
test = [line for file in files[::5] for line in tagged_lines(file)][:3000]
print(f"{len(train)} lines to train on, {len(test)} lines of other files to test with")

# The description: rows are characters, sequences are lines; nothing is padded.
characters = layer.data("characters", shape=["characters"], dtype="int64", lod_level=1)
tags = layer.data("tags", shape=["characters", 1], dtype="int64", lod_level=1)
h = layer.embedding(characters, [128, 32])
h = layer.sequence_conv(h, 96, 5, activation="relu")
h, _ = layer.gru(h, 48, bidirectional=True)
weights = layer.fc(h, OUTSIDE + 1)
cost = layer.mean(layer.linear_chain_crf(weights, tags, transition="transition"))
path = layer.crf_decoding(weights, "transition")
right = layer.cast(layer.equal(path, tags), "fp32")
f1 = layer.chunk_eval(path, tags, "IOB", len(KINDS))[2]
print(fs.default_main_program())

history = fs.train(
    cost,
    ragged(train),
    validation=ragged(test),
    optimizer=fs.optimizer.Adam(fs.optimizer.CosineDecay(0.003, 1, epochs * -(-len(train) // 64))),
    metrics={"right characters": right, "F1": f1},
    epochs=epochs,
    batch_size=64,
)
print(history)
history.plot(f"{folder}/tagger.png")

# Saved, opened again, and measured: of the opened program more can be described.
fs.save_inference_model(f"{folder}/tagger", [characters], [path])
program, feeds, fetches = fs.load_inference_model(f"{folder}/tagger", scope=(scope := fs.Scope()))
with fs.program_guard(program):
    tags = layer.data("tags", shape=["characters", 1], dtype="int64", lod_level=1)
    accuracy = layer.mean(layer.cast(layer.equal(fetches[0], tags), "fp32"))
    measures = layer.chunk_eval(fetches[0], tags, "IOB", len(KINDS))
right, precision, recall, f1, *_, read = fs.Executor().run(program, ragged(test), [accuracy, *measures, fetches[0]], scope)
print(f"held out: {right:.2%} of the characters; tokens: precision {precision[0]:.2%}, recall {recall[0]:.2%}, F1 {f1[0]:.2%}")
print("k: a keyword begins, n: a name, 0: a number, s: a string, #: a comment; -: it goes on")
for (line, _), tag in list(zip(test, read.to_list(), strict=True))[1000:1012]:
    print(line)
    print("".join(" " if t == OUTSIDE else "kn0s#"[t // 2] if t % 2 == 0 else "-" for t in tag[:, 0]))
