"""GGUF files for fuzzing: small whole networks, and ones whose headers lie."""

from __future__ import annotations

import random
import struct

import numpy as np

from foreshape.interop.gguf_blocks import BLOCKS
from foreshape.interop.gguf_file import STORAGES
from foreshape.interop.gguf_writer import PlacedTensor, header_bytes, number, numbers, text, texts, truth, whole, whole_numbers

_WIDTH, _WORDS = 256, 12
_HUGE = (0, 1, 3, 31, 255, 1 << 16, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


def _tensor(draw: np.random.RandomState, storage: str, *dims: int) -> PlacedTensor:
    size, block = (BLOCKS[storage].size, BLOCKS[storage].block) if storage in BLOCKS else (4, 1)
    data = draw.randint(0, 60, int(np.prod(dims)) // block * size).astype("uint8")
    if storage == "F32":
        data = draw.uniform(-0.1, 0.1, dims).astype("float32").view("uint8")
    return PlacedTensor(storage, dims, data.nbytes, lambda: data)


def _network(kind: str, byte_words: bool) -> bytes:
    """A Llama of one layer with matrices in blocks of a kind."""
    draw = np.random.RandomState(0)
    facts = {
        "general.architecture": text("llama"),
        "llama.context_length": whole(16),
        "llama.embedding_length": whole(_WIDTH),
        "llama.block_count": whole(1),
        "llama.feed_forward_length": whole(4),
        "llama.attention.head_count": whole(2),
        "llama.attention.key_length": whole(4),
        "llama.attention.value_length": whole(4),
        "llama.attention.layer_norm_rms_epsilon": number(1e-5),
        "llama.rope.freq_base": number(10000.0),
        "tokenizer.ggml.token_type": whole_numbers([2, 3, 3, *[1] * (_WORDS - 3)]),
        "tokenizer.ggml.bos_token_id": whole(1),
        "tokenizer.ggml.eos_token_id": whole(2),
        "tokenizer.ggml.add_bos_token": truth(True),
        "tokenizer.chat_template": text("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"),
    }
    words = ["<unk>", "<s>", "</s>", *("abĠcde" if byte_words else "ab▁cde"), "ab", "abc", "de"]
    facts["tokenizer.ggml.tokens"] = texts(words)
    if byte_words:
        facts |= {"tokenizer.ggml.model": text("gpt2"), "tokenizer.ggml.pre": text("qwen2"), "tokenizer.ggml.merges": texts(["a b", "ab c", "d e"])}
    else:
        facts |= {"tokenizer.ggml.model": text("llama"), "tokenizer.ggml.scores": numbers([-float(i) for i in range(_WORDS)])}
    tensors = {"token_embd.weight": _tensor(draw, kind, _WORDS, _WIDTH), "output_norm.weight": _tensor(draw, "F32", _WIDTH)}
    for part, rows in (("attn_q", 8), ("attn_k", 8), ("attn_v", 8), ("ffn_gate", 4), ("ffn_up", 4)):
        tensors[f"blk.0.{part}.weight"] = _tensor(draw, kind, rows, _WIDTH)
    tensors |= {f"blk.0.{part}.weight": _tensor(draw, "F32", _WIDTH, columns) for part, columns in (("attn_output", 8), ("ffn_down", 4))}
    tensors |= {f"blk.0.{part}.weight": _tensor(draw, "F32", _WIDTH) for part in ("attn_norm", "ffn_norm")}
    parts = [header_bytes(facts, tensors)]
    for tensor in tensors.values():
        parts += [tensor.data().tobytes(), bytes(-tensor.nbytes % 32)]
    return b"".join(parts)


def networks() -> list[bytes]:
    return [_network(kind, index % 2 == 0) for index, kind in enumerate(("Q8_0", "Q4_K", "Q6_K", "Q2_K"))]


def crafted(rng: random.Random, files: list[bytes]) -> bytes:
    """A file cut off anywhere, or with a count, a place, a kind or a word in its header that is another, or a header of its own."""
    data = bytearray(rng.choice(files))
    names = data.index(b"token_embd.weight")
    how = rng.randrange(8)
    if how == 0:
        return bytes(data[: rng.randrange(names + 1000)])
    if how == 1:  # the counts of tensors and facts
        struct.pack_into("<Q", data, rng.choice((8, 16)), rng.choice(_HUGE))
    elif how == 2:  # any eight bytes of the header: sizes of names, counts of arrays, dims and places
        for _ in range(rng.choice((1, 1, 2, 5))):
            struct.pack_into("<Q", data, rng.randrange(24, names + 900), rng.choice(_HUGE))
    elif how == 3:  # the dims, the kind and the place of a tensor
        place = data.index(b".weight", rng.randrange(names - 8, names + 500)) + 7
        struct.pack_into("<I", data, place, rng.choice((0, 1, 2, 3, 4, 5, 1 << 31)))
        struct.pack_into("<Q", data, place + rng.choice((4, 12, 20, 24)), rng.choice((*_HUGE, 32, 64)))
    elif how == 4:  # a kind of blocks for another
        place = data.index(b"ffn_up.weight") + 13
        struct.pack_into("<I", data, place + 20, rng.choice([*STORAGES, 9, 16, 40]))
    elif how == 5:  # a word that is no text, or another one
        place = rng.randrange(24, names)
        data[place : place + 4] = rng.choice((b"\xff\xfe\x80\xc0", b"\0\0\0\0", b"\xed\xa0\x80 ", "▁▁".encode()[:4]))
    elif how == 6:  # one name for two
        names_of = (b"attn_q", b"attn_k", b"attn_v", b"bos", b"eos", b"add", b"pre")
        old, new = rng.choice(names_of), rng.choice(names_of)
        data = bytearray(bytes(data).replace(old, (new * 2)[: len(old)]))
    else:
        return _header_alone(rng)
    return bytes(data)


def _header_alone(rng: random.Random) -> bytes:
    """A header of a few facts: arrays in arrays, of any kinds and counts, and names that stand twice."""
    parts: list[bytes] = []
    for _ in range(count := rng.randrange(1, 4)):
        name = rng.choice((b"x", b"general.architecture", b"tokenizer.ggml.tokens", b"general.alignment", b"split.count"))
        kind = rng.choice((*range(14), 9, 9, 8, 1 << 31))
        parts.append(struct.pack("<Q", len(name)) + name + struct.pack("<I", kind))
        for _ in range(rng.randrange(5)):  # each array in the one before
            parts.append(struct.pack("<IQ", rng.choice((9, 9, 8, 4, 0, 13)), rng.choice((*_HUGE, 2))))
        parts.append(bytes(rng.randrange(40)))
    return b"GGUF" + struct.pack("<IQQ", rng.choice((3, 3, 2, 1, 0)), rng.choice((0, 1, *_HUGE)), rng.choice((count, *_HUGE))) + b"".join(parts)
