"""The settings of ``generation_config.json``: the texts of transformers with the same file, calls before files, and what has no form here."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import generation_settings as told
import numpy as np
import pytest
import torch
from support.some import each

import foreshape as fs
from foreshape.apps.generation.choice import draw
from foreshape.apps.generation.text_settings import _OTHERS, _WITHOUT_EFFECT, TextSettings, settings_of

KNOWN = json.loads(told.FILE.read_text())


@pytest.fixture(scope="module")
def model() -> fs.LanguageModel:
    return fs.language_model(told.FOLDER, users=12)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(told.FOLDER, tmp_path / "m"))


def config(folder: Path, name: str = "generation_config.json", **settings: Any) -> Path:
    file = folder / name
    file.write_text(json.dumps((json.loads(file.read_text()) if file.exists() else {}) | settings))
    return folder


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("name", each(2, told.CASES))
def test_texts_are_those_of_transformers(model: fs.LanguageModel, name: str):
    settings = told.CASES[name]
    model.settings = settings_of(settings, "generation_config.json")
    assert fs.generate(model, told.PROMPTS, None if told.lasts(settings) else told.WORDS) == KNOWN["texts"][name]


@pytest.mark.quick_cases("min_p")
@pytest.mark.parametrize("name", each(3, told.DRAWS))
def test_draws_have_the_probabilities_of_transformers(name: str):
    """The words drawn for numbers all over [0, 1) come as often as transformers' own changes of the scores say."""
    settings = settings_of(told.DRAWS[name] | {"do_sample": True}, "generation_config.json")
    scores, count = torch.tensor(told.scores()), 600
    drawn = [draw(scores, settings, (at + 0.5) / count) for at in range(count)]
    np.testing.assert_allclose(np.bincount(drawn, minlength=len(scores)) / count, KNOWN["draws"][name], atol=4e-3)


def test_a_folder_has_its_settings_in_one_file(folder: Path):
    """``generation_config.json`` counts alone where it is; without it ``config.json`` has them. An argument is before all."""
    ends = [7, 24, 4]
    config(folder, "config.json", repetition_penalty=1.7)
    assert fs.language_model(folder).settings == TextSettings((7,), repetition_penalty=1.7)
    config(folder, eos_token_id=ends, max_length=20, repetition_penalty=None)
    assert fs.language_model(folder).settings == TextSettings(tuple(ends), max_length=20)
    assert fs.language_model(folder, generation_config={"num_beams": 2}).settings == TextSettings(beams=2)
    given = json.loads((folder / "config.json").read_text()) | {"max_length": 20}  # the default of older versions, which write it everywhere
    assert fs.language_model(given, folder).settings == TextSettings((7,), repetition_penalty=1.7)


def test_a_call_is_before_the_file(folder: Path):
    model = fs.language_model(config(folder, eos_token_id=7, do_sample=True, temperature=0.6, top_p=0.9, max_new_tokens=5, repetition_penalty=1.1))
    assert model.settings == TextSettings((7,), 5, 0.6, 50, top_p=0.9, repetition_penalty=1.1)
    prompts, usual = told.PROMPTS, KNOWN["texts"]["a penalty for repetition"]
    assert fs.generate(model, prompts, seed=1) == fs.generate(model, prompts, 5, temperature=0.6, top_k=50, top_p=0.9, repetition_penalty=1.1, seed=1)
    model.settings = model.settings.but({"ends": ()})
    assert fs.generate(model, prompts, 12, temperature=0, repetition_penalty=1.7) == usual
    with pytest.raises(fs.SchemaError, match=r"temperature .0 where the model's settings have one"):
        fs.generate(model, prompts, beams=2)
    assert len(fs.generate(model, prompts, beams=2, temperature=0)) == len(prompts)


def test_a_prompt_longer_than_the_longest_text_is_refused(model: fs.LanguageModel):
    model.settings = settings_of({"max_length": 5}, "generation_config.json")
    with pytest.raises(fs.FeedError, match="max_length=5, and the prompt has 5 words"):
        fs.generate(model, [[1] * 5])
    assert [len(text) for text in fs.generate(model, [[1] * 4, [1] * 5], 2)] == [2, 2]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"guidance_scale": 1.5}, "generation_config.json has guidance_scale=1.5, which has no form here"),
        ({"stop_strings": ["\n"]}, "stop_strings"),
        ({"watermarking_config": {"bias": 2.0}}, "watermarking_config"),
        ({"penalty_alpha": 0.6, "top_k": 4}, "penalty_alpha"),
        ({"num_beam_groups": 2, "num_beams": 4}, "num_beam_groups"),
        ({"force_words_ids": [[3]]}, "force_words_ids"),
        ({"encoder_no_repeat_ngram_size": 3}, "encoder_no_repeat_ngram_size"),
        ({"token_healing": True}, "token_healing"),
        ({"top_h": 0.4}, "top_h"),
        ({"length_penalty": 1e308}, "generation_config.json: length_penalty must be"),
        ({"repetition_penalty": 0}, "repetition_penalty must be"),
        ({"do_sample": True, "temperature": 0.0}, "do_sample and temperature=0"),
        ({"do_sample": "yes"}, "do_sample must be True or False"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be numbers of words"),
        ({"bad_words_ids": 3}, "setting of another type"),
        ({"forced_bos_token_id": 40}, r"name the word 40, and the words are in \[0, 40\)"),
    ],
)
def test_settings_without_a_form_are_refused_by_name(folder: Path, settings: dict[str, Any], says: str):
    config(folder, **settings)
    with pytest.raises((fs.SchemaError, fs.FormatError), match=says):
        fs.language_model(folder)
    fs.language_model(folder, generation_config={})


@pytest.mark.parametrize("name", KNOWN["names"])
def test_no_setting_of_transformers_is_passed_over(name: str) -> None:
    """A senseless value is refused or told of, but where a setting has no effect on words: so the name is read."""
    strange = {"do_sample": True, name: object()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if name in _OTHERS:
            with pytest.raises(fs.ForeshapeWarning, match=f"without {name}"):
                settings_of(strange, "generation_config.json")
        elif name in _WITHOUT_EFFECT or name.startswith("_"):
            assert settings_of(strange, "generation_config.json") == settings_of({"do_sample": True}, "generation_config.json")
        else:
            with pytest.raises((fs.SchemaError, fs.FormatError), match=r"^generation_config\.json|^do_sample"):
                settings_of(strange, "generation_config.json")


def test_settings_that_change_no_word_are_told_or_need_no_word(folder: Path):
    config(folder, use_cache=True, cache_implementation="hybrid", pad_token_id=3, output_scores=False, guidance_scale=1.0, num_beam_groups=1, top_h=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fs.language_model(folder)
    config(folder, max_time=3.0, num_return_sequences=2, cache_implementation="quantized", chat_format="chatml", use_new=True, presence_penalty=1.0)
    with pytest.warns(fs.ForeshapeWarning, match="without max_time, num_return_sequences, cache_implementation, chat_format, use_new, presence_penalty"):
        fs.language_model(folder)
    (folder / "generation_config.json").write_text("[]")
    with pytest.raises(fs.FormatError, match="must hold an object"):
        fs.language_model(folder)
