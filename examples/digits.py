"""Handwritten digits: describe a convolutional network, train it, save it, open it again.

python examples/digits.py [FOLDER]
"""

import sys

import numpy as np
from sklearn.datasets import load_digits

import foreshape as fs
from foreshape import layer

folder = sys.argv[1] if len(sys.argv) > 1 else "."
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 15

digits = load_digits()
order = np.random.RandomState(0).permutation(len(digits.images))
images = (digits.images[order, None] / 16).astype("float32")  # [1797, 1, 8, 8]
labels = digits.target[order, None]  # [1797, 1]
train, test = slice(0, 1437), slice(1437, None)

# The description: every shape is known when its line has run.
x = layer.data("image", shape=["batch", 1, 8, 8])
y = layer.data("label", shape=["batch", 1], dtype="int64")
h = layer.conv2d(x, 32, 3, padding=1, activation="relu")
h = layer.conv2d(h, 32, 3, padding=1, activation="relu")
h = layer.pool2d(h, 2, "max", stride=2)
h = layer.conv2d(h, 64, 3, padding=1, activation="relu")
h = layer.pool2d(h, 2, "max", stride=2)
print(h.shape)  # [batch, 64, 2, 2]
h = layer.dropout(layer.fc(h, 64, "relu"), 0.3)
scores = layer.softmax(layer.fc(h, 10))
loss = layer.cross_entropy(scores, y)
accuracy = layer.accuracy(scores, y)

history = fs.train(
    loss,
    {"image": images[train], "label": labels[train]},
    validation={"image": images[test], "label": labels[test]},
    optimizer=fs.optimizer.Adam(0.002),
    metrics={"accuracy": accuracy},
    epochs=epochs,
)
print(history)

fs.save_inference_model(f"{folder}/digits", [x], [scores])
program, feeds, fetches = fs.load_inference_model(f"{folder}/digits", scope=(scope := fs.Scope()))
(out,) = fs.Executor().run(program, {feeds[0]: images[test]}, fetches, scope)
print(f"opened again: {(out.argmax(1) == labels[test, 0]).mean():.2%} of the test images")
