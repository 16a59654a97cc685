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
    fs.Variable("S", data_type=fs.STRING, value='two\nlines\x1b[31m \u202e "quoted" é')
    fs.Variable("ids", shape=[4], data_type=fs.INT64, value=[1, 2, -3, 2**62])
    x = layer.data("a name = with: marks, (all) [of] {them} # here", shape=["my batch", 3])
    return layer.relu(x) * 2.0


def open_guards():
    a, b = layer.data("a", shape=["n", 3]), layer.data("b", shape=["m", 3])
    return a + b


def _classifier():
    images = layer.data("images", shape=["batch", 1, 6, 6])
    label = layer.data("label", shape=["batch", 1], dtype="int64")
    seen = layer.conv2d(images, 4, 3)
    out = layer.fc(layer.relu(layer.fc(seen, 8)), 10)
    return layer.mean(layer.softmax_with_cross_entropy(out, label))


def accumulated():
    loss = _classifier()
    fs.optimizer.Momentum(fs.optimizer.cosine(0.1, steps=9), clip=fs.optimizer.ClipByGlobalNorm(1.0)).minimize(loss)
    return fs.passes.accumulate(fs.default_main_program(), 4, fs.default_startup_program())


def in_bf16():
    loss = _classifier()
    lowered, startup = fs.passes.lower_precision(fs.default_main_program(), "bf16"), fs.default_startup_program()
    fs.optimizer.SGD(0.1).minimize(lowered.var(loss.name), startup)
    return lowered, startup


def in_fp16():
    loss = _classifier()
    lowered, startup = fs.passes.lower_precision(fs.default_main_program(), "fp16"), fs.default_startup_program()
    fs.optimizer.SGD(0.1).minimize(lowered.var(loss.name), startup)
    return fs.passes.scale_loss(lowered, loss.name, startup)


def in_fp16_accumulated():
    loss = _classifier()
    lowered, startup = fs.passes.lower_precision(fs.default_main_program(), "fp16"), fs.default_startup_program()
    fs.optimizer.SGD(0.1).minimize(lowered.var(loss.name), startup)
    lowered, startup = fs.passes.scale_loss(lowered, loss.name, startup)
    return fs.passes.accumulate(lowered, 2, startup)
