"""Tell languages apart by a few lines. A text is lines and a line is words, as many as there are: nothing is padded, cut or filled up.

The texts are what is installed anyway: Python's own modules, headers and help, and the sources that numpy, scikit-learn and torch bring.

    python examples/languages.py [FOLDER] [EPOCHS]
"""

import importlib.util
import random
import re
import sys
import sysconfig
import zlib
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np

import foreshape as fs
from foreshape import layer

folder = sys.argv[1] if len(sys.argv) > 1 else "."
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 5

WORDS = 1 << 15  # a word is one of so many numbers, by a hash
random.seed(0)


def package(name):
    """The folder of an installed package; None where it is not installed."""
    found = importlib.util.find_spec(name)
    return found and found.submodule_search_locations[0]


def files(folder, *patterns):
    """What is in the files of a folder."""
    return [file.read_text("utf-8", "ignore") for p in patterns for file in sorted(Path(folder).glob(p))] if folder else []


def texts(files, most):
    """Up to so many different texts of 1 to 6 lines, from anywhere in the files."""
    found = set()
    for lines in map(str.splitlines, files):
        at = 0
        while at < len(lines):
            size = random.randint(1, 6)
            found.add(tuple(lines[at : at + size]))
            at += size
    found = sorted(text for text in found if sum(map(len, text)) >= 20)
    return random.sample(found, min(most, len(found)))


def ragged(texts):
    """All words of all lines of all texts, packed, with the lines of each text and the words of each line; an empty line has none."""
    lines = [re.findall(r"^\s+|\w+|[^\w\s]", line) for text, _ in texts for line in text]
    words = np.array([zlib.crc32(word.encode()) % WORDS for line in lines for word in line])
    lengths = [[len(text) for text, _ in texts], [len(line) for line in lines]]
    return {"words": fs.LoDTensor(words, lengths), "language": np.array([[language] for _, language in texts])}


python = sysconfig.get_paths()
sources = {
    "English": list(topics.values()),  # what help() says, page by page
    "Python": files(python["stdlib"], "*.py"),
    "stubs": files(package("numpy"), "**/*.pyi"),
    "Cython": files(package("sklearn"), "**/*.pyx", "**/*.pxd"),
    "Fortran": files(package("numpy"), "**/*.f", "**/*.f90"),
    "C": files(python["include"], "**/*.h") + files(package("numpy"), "**/*.h", "**/*.c"),
    "C++": files(package("torch"), "include/c10/**/*.h"),
}
names = list(sources)
if few := [name for name in names if len(sources[name]) < 20]:
    sys.exit(f"this Python has hardly any files in {', '.join(few)}; pip install '.[demo]' installs numpy, scikit-learn and torch with theirs")

# Every fourth file is held out; of it are kept the texts that are not read elsewhere.
train, test = [], []
for language, found in enumerate(sources.values()):
    random.shuffle(found)
    read = texts([file for i, file in enumerate(found) if i % 4], 4000)
    train += [(text, language) for text in read]
    test += [(text, language) for text in texts(found[::4], 500) if text not in read]
print(f"{len(train)} texts to train on, {len(test)} texts of other files to test with")

# The description: rows are words, sequences are lines, and sequences of lines are texts.
words = layer.data("words", shape=["words"], dtype="int64", lod_level=2)
language = layer.data("language", shape=["batch", 1], dtype="int64")
h = layer.dropout(layer.embedding(words, [WORDS, 64], is_sparse=True), 0.5)
h = layer.sequence_conv(h, 64, 3, activation="relu")  # each word with its neighbours
h = layer.sequence_pool(h, "max")  # lines: one row for each, ragged as texts
h = layer.dropout(h, 0.5)
weight = layer.sequence_softmax(layer.fc(h, 1))  # what each line of a text says of it
h = layer.sequence_pool(h * weight, "sum")  # texts: one row for each
print(h.shape)  # [batch, 64]
scores = layer.softmax(layer.fc(h, len(names)))
loss = layer.mean(layer.cross_entropy(scores, language))
accuracy = layer.accuracy(scores, language)
print(fs.default_main_program())

history = fs.train(
    loss,
    ragged(train),
    validation=ragged(test),
    optimizer=fs.optimizer.Adam(fs.optimizer.CosineDecay(0.003, 1, epochs * -(-len(train) // 64))),
    metrics={"accuracy": accuracy},
    epochs=epochs,
    batch_size=64,
)
print(history)
history.plot(f"{folder}/languages.png")

# Saved, opened again, and measured.
fs.save_inference_model(f"{folder}/languages", [words], [scores, weight])
program, feeds, fetches = fs.load_inference_model(f"{folder}/languages", scope=(scope := fs.Scope()))
out, weight = fs.Executor().run(program, {feeds[0]: ragged(test)["words"]}, fetches, scope)
truth, guess = np.array([language for _, language in test]), out.argmax(1)
right = truth == guess
print(f"held out: {right.mean():.2%} of the texts; always the most frequent language: {np.bincount(truth).max() / len(truth):.2%}")
sizes = np.array([len(text) for text, _ in test])
print("by lines:", ", ".join(f"{n}: {right[sizes == n].mean():.1%}" for n in range(1, 7)))

print("\n" + "is \\ read as".ljust(12) + "".join(name.rjust(9) for name in names))
for i, name in enumerate(names):
    print(name.ljust(12) + "".join(f"{np.sum((truth == i) & (guess == j)) or '.':>9}" for j in range(len(names))))

print("\nsome that were read wrongly, with the weight of each line")
for i in random.sample(list(np.flatnonzero(~right & (sizes > 2))), 3):
    print(f"{names[truth[i]]}, read as {names[guess[i]]}")
    for share, line in zip(weight.to_list()[i][:, 0], test[i][0], strict=True):
        print(f"  {share:4.0%}  {line[:120]}")
