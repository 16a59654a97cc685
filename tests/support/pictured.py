"""Networks to look at: with and without scopes, hostile names, and many ops."""

from __future__ import annotations

import random

import foreshape as fs
from foreshape import layer
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp;\x1b[31m\u202e\ud83d"


def scoped(path: str, before: int) -> None:
    """Say of the default program's ops from this one on that they were made in a scope."""
    for op in fs.default_main_program().global_block.ops[before:]:
        entries = [e for e in op.attributes.entries if e[0] != "op_namescope"]
        entries.append(("op_namescope", AttrType.STRING, path))
        op.attributes = Attributes.of(op.type, tuple(sorted(entries, key=lambda e: e[0])))


def encoder(blocks: int = 4, width: int = 8) -> fs.Variable:
    """A stack of residual blocks, each in a scope of its own."""
    h = layer.fc(layer.data("x", shape=["batch", width]), width)
    with fs.name_scope("encoder"):
        for block in range(blocks):
            with fs.name_scope(str(block)):
                with fs.name_scope("mlp"):
                    inner = layer.fc(layer.fc(h, 2 * width, "relu", name="up"), width, name="down")
                h = h + inner
    return layer.fc(h, 2, name="scores")


def hostile() -> fs.Program:
    """A network whose names are made to do harm where they are shown."""
    x = layer.data(HOSTILE, shape=["batch", 6])
    block = fs.default_main_program().global_block
    block.append_op("relu", {"X": x}, {"Out": HOSTILE + "2"})
    at = len(block.ops)
    block.append_op("tanh", {"X": HOSTILE + "2"}, {"Out": HOSTILE + "3"})
    scoped(f"/{HOSTILE}/inner/", at)
    return fs.default_main_program()


def long_chain(layers: int) -> fs.Program:
    """Layers drawn at random, so that little repeats; a fifth of them beside another one, to which they are added. 3.6 ops each."""
    draw = random.Random(0)
    h = layer.data("x", shape=["batch", 32])
    for _ in range(layers):
        width = draw.choice((16, 32, 48))
        made = layer.fc(h, width, draw.choice(("relu", "tanh", "sigmoid")))
        h = layer.fc(h, width) + made if draw.random() < 0.2 else made
    return fs.default_main_program()
