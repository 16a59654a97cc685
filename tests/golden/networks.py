"""Networks whose text is kept, at lines that stay where they are. Add new ones at the end."""

import foreshape as fs
from foreshape import layer


def trained():
    images = layer.data("images", shape=["batch", 784])
    label = layer.data("label", shape=["batch", 1], dtype="int64")
    hidden = layer.fc(images, 100, "relu")
    out = layer.fc(hidden, 10)
    loss = layer.mean(layer.softmax_with_cross_entropy(out, label))
    fs.optimizer.SGD(0.1).minimize(loss)


def ragged():
    words = layer.data("words", shape=[-1, 6], lod_level=2)
    return layer.fc(words, 3, "relu")


def constants_and_strange_names():
    fs.Variable("X", shape=[3, 2], data_type=fs.FP32, value=0.1)
    fs.Variable("S", data_type=fs.STRING, value="two\nlines\x1b[31m \u202e \"quoted\" é")
    fs.Variable("ids", shape=[4], data_type=fs.INT64, value=[1, 2, -3, 2**62])
    x = layer.data("a name = with: marks, (all) [of] {them} # here", shape=["my batch", 3])
    return layer.relu(x) * 2.0


def open_guards():
    a, b = layer.data("a", shape=["n", 3]), layer.data("b", shape=["m", 3])
    return a + b
