"""Decoders of the transformers library by their configurations: the same words as its own ``generate`` writes, and what is refused."""

from __future__ import annotations

import json

import decoders
import pytest
from support.some import each

import foreshape as fs

TOLD = json.loads(decoders.FILE.read_text())


def model_of(told, **settings) -> fs.LanguageModel:
    state = {name: decoders.value_of(name, dims) for name, dims in told["state"].items()}
    return fs.language_model(told["config"], state, **settings)


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
