"""Decoders of the transformers library by their configurations: the same words as its own ``generate`` writes, and what is refused."""

from __future__ import annotations

import json
import warnings

import decoders
import pytest
import torch
from safetensors.torch import save_file
from support.some import each

import foreshape as fs
from foreshape.apps.generation.decoder_kinds import architecture_of

TOLD = json.loads(decoders.FILE.read_text())


def model_of(told, **settings) -> fs.LanguageModel:
    state = {name: decoders.value_of(name, dims) for name, dims in told["state"].items()}
    return fs.language_model(told["config"], state, **settings)


@pytest.mark.quick_cases("Qwen 3")
@pytest.mark.parametrize("name", each(4, TOLD))
def test_texts_are_those_of_transformers(name):
    """Texts of transformers' one by one are those written here side by side, and with prompts in parts."""
    told, prompts = TOLD[name], decoders.prompts()
    model = model_of(told, users=4, context=48)
    assert fs.generate(model, prompts, decoders.WORDS, prompt_rows=7) == told["greedy"]
    assert fs.generate(model, prompts, decoders.WORDS, beams=3, length_penalty=0.7) == told["beams"]


@pytest.mark.parametrize(
    ("name", "changed", "says"),
    [
        ("OPT", {"do_layer_norm_before": False}, "do_layer_norm_before=False is not known"),
        ("OPT", {"word_embed_proj_dim": 16}, "words of 16 columns in a network of 32"),
        ("Phi", {"qk_layernorm": True}, "qk_layernorm=True is not known"),
        ("StableLM", {"use_parallel_residual": True}, "use_parallel_residual=True is not known"),
        ("Cohere", {"use_qk_norm": True}, "use_qk_norm=True is not known"),
        ("Gemma 2", {"layer_types": ["chunked_attention", "full_attention"]}, "layers of the kind 'chunked_attention'"),
        ("Llama, yarn", {"rope_parameters": {"rope_type": "proportional"}}, "seen 'proportional'"),
        ("GPT-J", {"rotary_dim": 3}, "must be even, and up to its 8; seen 3"),
        ("Phi 3, longrope", {}, "at most 48 words; seen context=192"),
    ],
)
def test_settings_that_are_refused(name, changed, says):
    with pytest.raises(fs.SchemaError, match=says):
        model_of(TOLD[name] | {"config": TOLD[name]["config"] | changed}, context=192 if "longrope" in name else None)


def test_a_window_as_long_as_the_context_hides_nothing():
    """Without a window in reach the network has none, so its kernel is the plain one."""
    told = TOLD["Mistral"]
    model = model_of(told | {"config": told["config"] | {"sliding_window": 48}})
    assert all(op.attrs["window"] == 0 for op in model.program.all_ops() if op.type == "cached_attention")


@pytest.mark.parametrize(
    ("name", "left_out", "same_as"),
    [
        ("GPT-J", "activation_function", "gelu_new"),
        ("GPT-NeoX", "hidden_act", "gelu"),
        ("OPT", "activation_function", "relu"),
        ("Phi", "hidden_act", "gelu_new"),
        ("Phi 3, a window", "rms_norm_eps", 1e-5),
        ("OLMo 2", "rms_norm_eps", 1e-5),
        ("StarCoder 2", "hidden_act", "gelu_pytorch_tanh"),
        ("Granite", "attention_multiplier", 1.0),
        ("Qwen 3", "head_dim", 128),
        ("SmolLM 3", "rope_parameters", {"rope_type": "default", "rope_theta": 2e6}),
        ("Cohere", "logit_scale", 0.0625),
        ("Cohere", "rope_parameters", {"rope_type": "default", "rope_theta": 5e5}),
        ("Gemma", "hidden_act", "gelu_pytorch_tanh"),
        ("Gemma", "head_dim", 256),
        ("Gemma 2", "hidden_activation", "gelu_pytorch_tanh"),
        ("Gemma 2", "attn_logit_softcapping", 50.0),
        ("Gemma 2", "final_logit_softcapping", 30.0),
        ("Gemma 2", "query_pre_attn_scalar", 256),
        ("Gemma 3", "hidden_activation", "gelu_pytorch_tanh"),
    ],
)
def test_a_field_left_out_has_the_value_of_transformers_class(name, left_out, same_as):
    """Configurations of older versions have only the values that differ from their class's own."""
    config = TOLD[name]["config"]
    rest = {key: value for key, value in config.items() if key != left_out}
    assert shown(rest) == shown(rest | {left_out: same_as})


def shown(config) -> str:
    """Return the description of a decoder as a text: `layer.Rotary` is compared by it alone."""
    return repr(architecture_of(config))


def test_legacy_fields_of_gemma():
    """The first Gemma's gelu meant the form with tanh; later ones name it in another field. Gemma 3's layers had their rotations' bases in two fields."""
    gelu = {"hidden_act": "gelu", "hidden_activation": None}
    for name in ("Gemma", "Gemma 2", "Gemma 3"):
        config = TOLD[name]["config"]
        assert shown(config | gelu) == shown(config)
    assert architecture_of(TOLD["GPT-NeoX"]["config"] | gelu).blocks["activation"] == "gelu"
    config = {key: value for key, value in TOLD["Gemma 3"]["config"].items() if key != "rope_parameters"}
    old = config | {"rope_theta": 5e3, "rope_local_base_freq": 50.0}
    assert shown(old) == shown(TOLD["Gemma 3"]["config"])
    assert [r["rotary"].base for r in architecture_of(config).each] == [1e4, 1e6]
    scaled = architecture_of(old | {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}).each
    assert repr(scaled[0]) == repr(architecture_of(old).each[0]) and repr(scaled[1]) != repr(architecture_of(old).each[1])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"config": {"quantization_config": {"quant_method": "gptq", "bits": 4}}}, "quantized .quantization_config with quant_method='gptq'"),
        ({"config": {"compression_config": {"format": "pack-quantized"}}}, "quantized .compression_config"),
        ({"dtype": torch.int8}, "q_proj.weight must be in floats of 16, 32 or 64 bits; seen torch.int8"),
        ({"dtype": torch.float8_e4m3fn}, "seen torch.float8_e4m3fn"),
        ({"beside": "weight_scale"}, "has model.layers.0.self_attn.q_proj.weight_scale beside the weight"),
        ({"beside": "SCB"}, "q_proj.SCB beside the weight"),
        ({"beside": "weight.absmax"}, "q_proj.weight.absmax beside the weight"),
        ({"beside": "lora_A.default.weight"}, "q_proj.lora_A.default.weight beside the weight"),
    ],
)
def test_quantized_weights_and_adapters_are_refused(change, says):
    told = TOLD["Llama, dynamic"]
    state = {name: torch.tensor(decoders.value_of(name, dims)) for name, dims in told["state"].items()}
    name = "model.layers.0.self_attn.q_proj"
    if "dtype" in change:
        state[f"{name}.weight"] = state[f"{name}.weight"].to(change["dtype"])
    if "beside" in change:
        state[f"{name}.{change['beside']}"] = torch.ones(1)
    with pytest.raises(fs.SchemaError, match=says):
        fs.language_model(told["config"] | change.get("config", {}), state)


def test_files_of_other_weights_are_refused_or_left(tmp_path):
    """An adapter in the folder is an error; values without a place are told; buffers of old files are no news."""
    told = TOLD["Llama, dynamic"]
    state = {name: torch.tensor(decoders.value_of(name, dims)) for name, dims in told["state"].items()}
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(told["config"]))
    save_file({"other": torch.ones(1)}, tmp_path / "consolidated.safetensors")  # the same weights by other names, as some folders have them
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fs.language_model(tmp_path)
        fs.language_model(told["config"], state | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    with pytest.warns(fs.ForeshapeWarning, match="2 values of the source have no place in the network, such as model.layers.2.x.weight"):
        fs.language_model(told["config"], state | {"model.layers.2.x.weight": torch.ones(4), "vision.weight": torch.ones(4)})
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(fs.SchemaError, match="has an adapter beside its weights"):
        fs.language_model(tmp_path)
    fs.language_model(tmp_path, tmp_path / "model.safetensors")
