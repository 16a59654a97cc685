"""Networks in GGUF files: the texts of the same networks by their state dicts, kept numbers, and files that are damaged, foreign or hostile."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import decoders
import numpy as np
import pytest

import foreshape as fs
from foreshape.interop.gguf_file import STORAGES, GgufFile
from foreshape.machine.kernels import grouped_weights

gguf = pytest.importorskip("gguf", reason="the package that writes the files")

import gguf_files  # noqa: E402


def scores_of(model: fs.LanguageModel) -> np.ndarray:
    rows = decoders.prompts()[:3]
    return model.run(rows, range(3), [0] * 3).numpy().copy()


# --- networks


@pytest.mark.quick_cases("Llama, yarn", "Qwen 2", "Qwen 3", "Gemma", "Gemma 2", "Phi 3, a window", "GPT-2")
@pytest.mark.parametrize("name", gguf_files.NAMES)
def test_texts_are_those_of_the_state_dict(name: str, tmp_path: Path) -> None:
    case, file = gguf_files.told(name), tmp_path / "model.gguf"
    gguf_files.written(file, case)
    model = fs.language_model(file, users=4)
    state = {key: decoders.value_of(key, dims) for key, dims in case["state"].items()}
    other = fs.language_model(case["config"], state, users=4)
    np.testing.assert_allclose(scores_of(model), scores_of(other), rtol=1e-4, atol=1e-5)
    assert fs.generate(model, decoders.prompts(), 8) == fs.generate(other, decoders.prompts(), 8)
    assert (model.context, model.end, model.vocabulary) == (other.context, {7}, 50)


@pytest.mark.quick_cases("Mistral-Q8_0", "Mistral-Q4_0", "Qwen 3-Q4_1", "Gemma 2-Q8_0", "Llama, linear-BF16", "Granite-Q5_1")
@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q5_0", "Q4_1", "Q5_1"])
@pytest.mark.parametrize("name", ["Llama, linear", "Mistral", "Qwen 3", "Gemma 2", "Phi 3, a window", "Granite", "GPT-2"])
def test_numbers_of_the_file_are_kept(name: str, kind: str, tmp_path: Path) -> None:
    """Those of blocks with their scales and offsets, and floats in fp32."""
    case, file = gguf_files.told(name), tmp_path / "model.gguf"
    state = gguf_files.written(file, case, kind)
    expected = scores_of(fs.language_model(case["config"], state, users=4))
    floats, model = fs.language_model(file, users=4, weights="float"), fs.language_model(file, users=4)
    np.testing.assert_allclose(scores_of(floats), expected, rtol=1e-5, atol=1e-5)
    assert np.abs(scores_of(model) - expected).max() < 1e-5 * np.abs(expected).max()
    assert not packed_in(floats)
    bits = {"Q8_0": 8, "Q5_0": 8, "Q5_1": 8, "Q4_1": 4, "Q4_0": 4}.get(kind)
    assert all(f"@{bits}_bits" in name for name in packed_in(model)) and len(packed_in(model)) >= (10 if bits else 0)


@pytest.mark.quick_cases("Q4_K", "Q6_K")
@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_numbers_of_large_blocks_are_kept(kind: str, tmp_path: Path) -> None:
    case, file = gguf_files.wide("Qwen 3"), tmp_path / "model.gguf"
    state = gguf_files.written(file, case, kind)
    expected, model = scores_of(fs.language_model(case["config"], state, users=4)), fs.language_model(file, users=4)
    assert np.abs(scores_of(model) - expected).max() < 1e-5 * np.abs(expected).max()
    step = model.run([[3]], [0], [0]).numpy()
    np.testing.assert_allclose(step, fs.language_model(case["config"], state, users=4).run([[3]], [0], [0]).numpy(), rtol=1e-3, atol=1e-5)
    weight, blocks = "encoder.1.mlp.outer.weight", GgufFile(file).blocks("blk.1.ffn_down.weight")
    packed = next(name for name in packed_in(model) if name.startswith(weight))
    offsets = model.scope.tensor(f"{packed}@offset") if blocks.offsets is not None else None
    values = grouped_weights.unpack(*(model.scope.tensor(name) for name in (packed, f"{packed}@scale")), blocks.bits, offsets)
    np.testing.assert_array_equal(values.transpose(0, 1).reshape(256, -1)[:, :256].numpy(), state["model.layers.1.mlp.down_proj.weight"].T)
    scale_bits = 32 * (1 if offsets is None else 2) // (256 // blocks.scales.shape[1])
    assert 8 * sum(model.scope.tensor(n).nbytes for n in model.program.global_block.vars if n.startswith(packed)) == 256 * 256 * (blocks.bits + scale_bits)


def packed_in(model: fs.LanguageModel) -> list[str]:
    return [name for name in model.program.global_block.vars if "_bits" in name and "@scale" not in name and "@offset" not in name]


def test_packed_bytes_and_scales_are_those_of_the_file(tmp_path: Path) -> None:
    for kind, bits in (("Q8_0", 8), ("Q4_0", 4)):
        file = tmp_path / f"{kind}.gguf"
        gguf_files.written(file, gguf_files.told("Qwen 3"), kind)
        model = fs.language_model(file)
        tensor = next(t for t in gguf.GGUFReader(file).tensors if t.name == "blk.1.ffn_up.weight")  # [40, 32]: a block for each column
        packed = model.scope.get(f"encoder.1.mlp.inner.weight@{bits}_bits")[0]
        numbers = packed if bits == 8 else np.stack([packed & 15, packed >> 4], 1).reshape(32, 64).astype("int16") - 8
        blocks = np.asarray(tensor.data).reshape(40, -1)
        np.testing.assert_array_equal(model.scope.get(f"encoder.1.mlp.inner.weight@{bits}_bits@scale")[0, 0, :40], blocks[:, :2].copy().view("<f2")[:, 0])
        theirs = blocks[:, 2:].view(np.int8).T if bits == 8 else np.concatenate([blocks[:, 2:] & 15, blocks[:, 2:] >> 4], 1).T.astype("int16") - 8
        np.testing.assert_array_equal(numbers[:, :40], theirs)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_weights_are_packed_anew_if_asked(weights: Any, tmp_path: Path) -> None:
    case = gguf_files.told("Qwen 3")
    state = gguf_files.written(tmp_path / "model.gguf", case, "Q8_0")
    model = fs.language_model(tmp_path / "model.gguf", users=4, weights=weights, group=16)
    np.testing.assert_allclose(scores_of(model), scores_of(fs.language_model(case["config"], state, users=4, weights=weights, group=16)), rtol=1e-4, atol=1e-5)


def test_large_tables_and_tied_scores(tmp_path: Path) -> None:
    """A table of words has a scale for each row, whatever the file; the same tensor gives the scores with the file's own."""
    case = gguf_files.told("Gemma")
    wide = case | {"config": case["config"] | {"vocab_size": 600}, "state": case["state"] | {"model.embed_tokens.weight": [600, 32]}}
    state = gguf_files.written(tmp_path / "model.gguf", wide, "Q8_0")
    model = fs.language_model(tmp_path / "model.gguf", users=4)
    names = model.program.global_block.vars
    assert "words.weight@bytes_in_rows" in names and "words.weight@8_bits_turned" in names and "words.weight" not in names
    expected = scores_of(fs.language_model(wide["config"], state, users=4))
    assert np.abs(scores_of(model) - expected).max() < 0.05 * np.abs(expected).max()


def test_divisors_of_llama_3(tmp_path: Path) -> None:
    """Files have them in place of four settings."""
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
        "rope_theta": 500.0,
    }
    case = gguf_files.told("Llama, yarn", rope_parameters=scaling)
    rates = 500.0 ** (-np.arange(0, 8, 2) / 8)
    smooth = (16 * rates / (2 * np.pi) - 1) / 3
    divisors = 1 / np.clip((1 - smooth) / 8 + smooth, 1 / 8, 1)
    gguf_files.written(tmp_path / "model.gguf", case, further={"rope_freqs.weight": divisors.astype("float32")})
    state = {key: decoders.value_of(key, dims) for key, dims in case["state"].items()}
    model, other = fs.language_model(tmp_path / "model.gguf", users=4), fs.language_model(case["config"], state, users=4)
    np.testing.assert_allclose(scores_of(model), scores_of(other), rtol=1e-4, atol=1e-5)


def test_joined_queries_keys_and_values(tmp_path: Path) -> None:
    """A Phi 2 of older converters, in one tensor of each block."""
    case, file = gguf_files.told("Phi"), tmp_path / "model.gguf"
    gguf_files.written(file, case, joined=True)
    state = {key: decoders.value_of(key, dims) for key, dims in case["state"].items()}
    np.testing.assert_allclose(scores_of(fs.language_model(file, users=4)), scores_of(fs.language_model(case["config"], state, users=4)), rtol=1e-4, atol=1e-5)


# --- blocks


@pytest.mark.parametrize("storage", STORAGES.values(), ids=lambda storage: storage.name)
def test_blocks_are_unpacked_as_by_the_package(storage: Any, tmp_path: Path) -> None:
    kind = gguf.GGMLQuantizationType[storage.name]
    assert gguf.GGML_QUANT_SIZES[kind] == storage[1:] and STORAGES[int(kind)] is storage
    rows = np.random.RandomState(0).randint(0, 120, (3, 512 // storage.block * storage.size)).astype("uint8")  # each half float is finite
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("x.weight", rows, raw_dtype=kind)
    gguf_files.finish(writer)
    file = GgufFile(tmp_path / "model.gguf")
    assert file.tensors["x.weight"].dims == (3, 512)
    np.testing.assert_array_equal(file.floats("x.weight").float().numpy(), gguf.quants.dequantize(rows, kind).reshape(3, 512))


def test_facts_are_those_of_the_package(tmp_path: Path) -> None:
    gguf_files.written(tmp_path / "model.gguf", gguf_files.told("Gemma 2"))
    file, reader = GgufFile(tmp_path / "model.gguf"), gguf.GGUFReader(tmp_path / "model.gguf")
    theirs = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    assert file.facts == {name: value for name, value in theirs.items() if not isinstance(value, list)}
    assert {name: t.dims for name, t in file.tensors.items()} == {t.name: tuple(t.shape.tolist()[::-1]) for t in reader.tensors}
    assert [t.begin for t in file.tensors.values()] == [t.data_offset for t in reader.tensors]


def test_the_package_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf_files.written(tmp_path / "model.gguf", gguf_files.wide("Qwen 3"), "Q4_K")
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    fs.language_model(tmp_path / "model.gguf")


# --- files with mistakes


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"facts": {"expert_count": 8}}, "a mixture of experts"),
        ({"facts": {"split.count": 3}}, "one of 3 files of a network: join them first"),
        ({"facts": {"attention.value_length": 4}}, "attn_q.weight must be of the heads in the file's facts"),
        ({"facts": {"attention.sliding_window": 1 << 31}}, "attention.sliding_window must be a whole number from 0"),
        ({"facts": {"rope.dimension_count": 7}}, "7 of 8 turned columns"),
        ({"facts": {"block_count": 4000000000}}, "block_count must be a whole number from 1 to 21; seen 4000000000"),
        ({"facts": {"block_count": 3}}, "has no tensor for the weight encoder.2."),
        ({"facts": {"block_count": 1}}, "9 tensors have no place in a network of the kind llama, such as blk.1."),
        ({"facts": {"attention.head_count": 1 << 30}}, "must be of the heads in the file's facts"),
        ({"further": {"blk.0.attn_sinks.weight": np.ones(4, "float32")}}, "1 tensors have no place in a network of the kind llama, such as blk.0.attn_sinks"),
        ({"further": {"rope_freqs.weight": np.zeros(4, "float32")}}, "rope_freqs.weight"),
        ({"architecture": "mamba"}, "known here are llama, .*; seen 'mamba'"),
    ],
)
def test_facts_that_are_refused(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    gguf_files.written(tmp_path / "model.gguf", gguf_files.told("Mistral"), **options)
    with pytest.raises((fs.FormatError, fs.SchemaError), match=says):
        fs.language_model(tmp_path / "model.gguf")


def test_other_files_and_arguments_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    with pytest.raises(fs.FormatError, match="cannot be read: No such file"):
        fs.language_model(file)
    gguf_files.written(file, gguf_files.told("Mistral"))
    with pytest.raises(fs.SchemaError, match="leave state= out"):
        fs.language_model(file, {})
    with pytest.raises(fs.SchemaError, match="weights must be one of 'int8', 'int4', 'float'; seen 'fp32'"):
        fs.language_model(file, weights="fp32")  # pyright: ignore
    data = file.read_bytes()
    for changed, says in (
        (b"", "no GGUF file"),
        (b"GGML" + data[4:], "no GGUF file; it begins with b'GGML'"),
        (data[:4] + struct.pack("<I", 1) + data[8:], "2 or 3, of little-endian numbers; seen 1"),
        (data[:4] + struct.pack(">I", 3) + data[8:], "seen big-endian numbers"),
        (data[:8] + struct.pack("<Q", 1 << 60) + data[16:], "damaged|cut short"),
        (data[:16] + struct.pack("<Q", 1 << 60) + data[24:], "damaged|cut short"),
        (data[:-1], "cut short or damaged, .* needs"),
    ):
        file.write_bytes(changed)
        with pytest.raises((fs.FormatError, fs.SchemaError), match=says):
            fs.language_model(file)


def test_tensors_that_share_bytes_are_refused(tmp_path: Path) -> None:
    """Else a small file could be a network of any size."""
    places = b"".join(struct.pack("<Q1sIQQIQ", 1, name, 2, 64, 64, 0, 0) for name in (b"a", b"b"))
    head = b"GGUF" + struct.pack("<IQQ", 3, 2, 0) + places
    file = tmp_path / "model.gguf"
    file.write_bytes(head + bytes(-len(head) % 32 + 4 * 64 * 64))
    with pytest.raises(fs.FormatError, match="its tensors share bytes"):
        fs.language_model(file)


def test_an_array_with_more_numbers_than_the_file_takes_no_memory(tmp_path: Path) -> None:
    for kind in (4, 8, 10):  # whole numbers, and texts
        fact = struct.pack("<Q1sIIQ", 1, b"x", 9, kind, 1 << 58) + bytes(64)
        (tmp_path / "model.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + fact)
        with pytest.raises(fs.FormatError, match="cut short or damaged: its header needs bytes"):
            fs.language_model(tmp_path / "model.gguf")


def test_scales_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    gguf_files.written(file, gguf_files.told("Mistral"), "Q8_0")
    data = bytearray(file.read_bytes())
    place = GgufFile(file).tensors["blk.1.attn_v.weight"].begin
    data[place : place + 2] = b"\0\x7e"
    file.write_bytes(data)
    for weights in (None, "float", "int8"):
        with pytest.raises(fs.FormatError, match=r"the blocks of blk\.1\.attn_v\.weight have scales that are not finite"):
            fs.language_model(file, weights=weights)


@pytest.mark.parametrize("kind", ["Q8_0", pytest.param("F32", marks=pytest.mark.long), pytest.param("Q4_1", marks=pytest.mark.long)])
def test_files_cut_off_or_changed_give_an_error_in_words(kind: str, tmp_path: Path) -> None:
    """Or a network: bytes of its numbers may be any. No case takes more memory than the file's own network."""
    file, draw = tmp_path / "model.gguf", random.Random(3)
    gguf_files.written(file, gguf_files.told("Mistral"), kind)
    data = file.read_bytes()
    begin = min(tensor.begin for tensor in GgufFile(file).tensors.values())
    for size in sorted({*range(0, 64), *(draw.randrange(len(data)) for _ in range(60)), *range(begin - 40, begin + 40)}):
        file.write_bytes(data[:size])
        with pytest.raises((fs.FormatError, fs.SchemaError)):
            fs.language_model(file)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(draw.choice((1, 1, 2, 8))):
            place = draw.randrange(begin)
            changed[place] = draw.choice((0, 1, 127, 128, 255, changed[place] ^ 1 << draw.randrange(8)))
        file.write_bytes(changed)
        try:
            fs.language_model(file)
            outcomes["read"] += 1
        except (fs.FormatError, fs.SchemaError) as error:
            assert error.__cause__ is None, error  # foreseen, and not the last resort
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 20, outcomes
