"""Language models written as GGUF files: the same texts behind them, the numbers of packed weights, and places that cannot be written to."""

from __future__ import annotations

import resource
import warnings
from pathlib import Path
from typing import Any

import decoders
import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

gguf = pytest.importorskip("gguf", reason="the package that reads the files")

import gguf_files  # noqa: E402

SAVED = ("Llama, linear", "Llama, yarn", "Mistral", "Qwen 2", "Qwen 3", "Gemma", "Gemma 2", "Gemma 3", "SmolLM 3", "Granite", "OLMo 2", "StarCoder 2")


def scores_of(model: fs.LanguageModel) -> np.ndarray:
    rows = decoders.prompts()[:3]
    return model.run(rows, range(3), [0] * 3).numpy().copy()


def model_of(name: str, **options: Any) -> fs.LanguageModel:
    case = gguf_files.told(name)
    state = {key: decoders.value_of(key, dims) for key, dims in case["state"].items()}
    return fs.language_model(case["config"], state, users=4, **options)


def tensors_of(file: Path) -> dict[str, tuple[str, bytes]]:
    return {t.name: (t.tensor_type.name, np.asarray(t.data).tobytes()) for t in gguf.GGUFReader(file).tensors}


def values_of(file: Path) -> dict[str, np.ndarray]:
    return {t.name: gguf.quants.dequantize(np.asarray(t.data), t.tensor_type) for t in gguf.GGUFReader(file).tensors}


@pytest.mark.quick_cases("Llama, yarn", "Mistral", "Gemma 2", "Granite")
@pytest.mark.parametrize("name", SAVED)
def test_a_model_read_back_writes_the_same_texts(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    model.save_gguf(tmp_path / "model.gguf")
    again = fs.language_model(tmp_path / "model.gguf", users=4)
    np.testing.assert_allclose(scores_of(again), scores_of(model), rtol=1e-5, atol=1e-6)
    assert fs.generate(again, decoders.prompts(), 8) == fs.generate(model, decoders.prompts(), 8)
    assert (again.end, again.context, again.vocabulary) == (model.end, model.context, model.vocabulary)


@pytest.mark.quick_cases("Mistral-Q8_0", "Granite-Q4_0", "Qwen 3-Q4_1")
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "F16", "BF16"])
@pytest.mark.parametrize("name", ["Mistral", "Granite", "Qwen 3", "Gemma 2"])
def test_a_file_saved_again_has_the_same_tensors_and_facts(name: str, kind: str, tmp_path: Path) -> None:
    """But for the table of words, which has too few rows here to be packed, and so is in floats."""
    first, second = tmp_path / "first.gguf", tmp_path / "second.gguf"
    gguf_files.written(first, gguf_files.told(name), kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fs.ForeshapeWarning)
        fs.language_model(first, users=4).save_gguf(second)
    expected, seen = tensors_of(first), tensors_of(second)
    assert expected.keys() == seen.keys()
    differing = {key for key in expected if expected[key] != seen[key] and expected[key][0] != "F32"} - {"token_embd.weight"}
    assert not differing or kind == "BF16"  # some numbers of BF16 are of F16 too
    for key, values in values_of(first).items():  # a factor that goes in and out again is a rounding
        np.testing.assert_allclose(values_of(second)[key], values, rtol=0 if name != "Granite" else 2e-7, atol=0, err_msg=key)
    facts = [{key: field.contents() for key, field in gguf.GGUFReader(file).fields.items() if not key.startswith("GGUF.")} for file in (first, second)]
    assert facts[0].items() <= facts[1].items() and facts[1].keys() - facts[0].keys() <= {"general.file_type", "general.quantization_version"}


@pytest.mark.parametrize(("weights", "kind"), [("int8", "Q8_0"), ("int4", "Q4_0")])
def test_packed_weights_keep_their_numbers(weights: Any, kind: str, tmp_path: Path) -> None:
    model = model_of("Qwen 3", weights=weights)
    with pytest.warns(fs.ForeshapeWarning, match="of its weights have scales rounded to 16 bits, by up to .*e-04 of a scale"):
        model.save_gguf(tmp_path / "model.gguf")
    again = fs.language_model(tmp_path / "model.gguf", users=4)
    assert np.abs(scores_of(again) - scores_of(model)).max() < 2e-3 * np.abs(scores_of(model)).max()
    tensor = next(t for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors if t.name == "blk.0.attn_k.weight")
    assert tensor.tensor_type.name == kind
    expected = gguf.quants.dequantize(np.asarray(tensor.data), tensor.tensor_type)
    bits = 8 if weights == "int8" else 4
    name = f"encoder.0.attention.key.weight@{bits}_bits"
    packed, scales = model.scope.tensor(name), model.scope.tensor(f"{name}@scale")
    from foreshape.machine.kernels.grouped_weights import unpack

    own = unpack(packed, scales, bits).transpose(0, 1).reshape(expected.shape[1], -1)[:, : expected.shape[0]].T
    np.testing.assert_allclose(expected, own.numpy(), rtol=6e-4)


def test_groups_without_an_equal_are_written_in_floats(tmp_path: Path) -> None:
    gguf_files.written(tmp_path / "first.gguf", gguf_files.wide("Qwen 3"), "Q6_K")
    model = fs.language_model(tmp_path / "first.gguf", users=4)
    model.save_gguf(tmp_path / "second.gguf")
    assert tensors_of(tmp_path / "second.gguf")["blk.0.ffn_up.weight"][0] == "F32"
    np.testing.assert_allclose(scores_of(fs.language_model(tmp_path / "second.gguf", users=4)), scores_of(model), rtol=1e-3, atol=1e-5)


def test_a_file_can_take_the_place_of_its_origin(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    gguf_files.written(file, gguf_files.told("Mistral"), "Q8_0")
    model = fs.language_model(file, users=4)
    model.save_gguf(file)
    np.testing.assert_array_equal(scores_of(fs.language_model(file, users=4)), scores_of(model))
    assert fs.quantize(model_of("Qwen 3"), weights="int8").origin is not None


def test_a_full_disk_leaves_the_old_file_alone(tmp_path: Path) -> None:
    file, model = tmp_path / "model.gguf", model_of("Qwen 3")
    file.write_bytes(b"old")
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (100, 20_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, usual[1]))
        try:
            with pytest.raises(fs.FormatError, match="cannot be written: File too large"):
                model.save_gguf(file)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)
        assert file.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["model.gguf"]
    with pytest.raises(fs.FormatError, match="a folder, not a file"):
        model.save_gguf(tmp_path)


def test_networks_without_a_form_are_refused(tmp_path: Path) -> None:
    for name, says in (("Phi 3, longrope", "must be of the kind llama, .*; seen 'phi3'"), ("Llama, dynamic", "positions of the kind 'dynamic' have no form")):
        with pytest.raises(fs.SchemaError, match=says):
            model_of(name).save_gguf(tmp_path / "model.gguf")
    words = layer.data("words", ["rows"], "int64", lod_level=1)
    cache = layer.attention_cache(words)
    h = layer.transformer_encoder(layer.embedding(words, [40, 32]), layers=1, heads=4, causal=True, cache=cache)
    own = fs.LanguageModel(words, layer.fc(layer.sequence_last_step(h), 40), cache)
    with pytest.raises(fs.SchemaError, match=r"must be one of fs\.language_model"):
        own.save_gguf(tmp_path / "model.gguf")
    assert not list(tmp_path.iterdir())


def test_a_setting_that_files_do_not_say_is_refused(tmp_path: Path) -> None:
    case = gguf_files.told("Gemma 2")
    state = {key: decoders.value_of(key, dims) for key, dims in case["state"].items()}
    model = fs.language_model(case["config"] | {"query_pre_attn_scalar": 100}, state, users=4)
    with pytest.raises(fs.SchemaError, match="query_factor of the network has no form in a GGUF file: it must be 0"):
        model.save_gguf(tmp_path / "model.gguf")
