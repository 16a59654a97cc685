"""Encoders of each kind against numbers of the transformers library."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_cases import CASES, IDS, LABELS, TYPES, expected, weight
from safetensors.numpy import save_file

from foreshape.apps.embedding.encoder_kinds import KINDS, head_named
from foreshape.apps.embedding.encoder_network import EncoderNetwork
from foreshape.apps.embedding.text_network import TextNetwork, open_encoder
from foreshape.errors import FormatError, SchemaError
from foreshape.language.program import Program, program_guard

EXPECTED = expected()


def write_folder(folder: Path, case: str, **changed: Any) -> dict[str, np.ndarray]:
    """Write a network's folder, and return its weights."""
    kind, settings = CASES[case]
    name = case.split()[0]
    config = {"model_type": kind, "architectures": [name], **settings, "id2label": {str(i): str(i) for i in range(LABELS)}, **changed}
    main, described = Program(), KINDS[kind]
    with program_guard(main, Program()):
        network = EncoderNetwork(described, config)
        if (head := head_named(config)) is not None:
            described.heads[head](network, len(config["id2label"]))
    weights: dict[str, np.ndarray] = {}
    for v in main.parameters():
        dims = [int(str(n)) for n in v.spec.known_dims]
        weights[v.name] = weight(v.name, dims[::-1] if v.name in network.turned else dims)
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    if kind == "gemma3_text":  # the file's window counts both sides
        config["sliding_window"] = config["sliding_window"] // 2 * 2
    (folder / "config.json").write_text(json.dumps(config))
    return weights


def opened(folder: Path) -> TextNetwork:
    return open_encoder(folder, head_named(json.loads((folder / "config.json").read_text())))[0]


def numbers(network: TextNetwork) -> np.ndarray:
    variable = network.rows if network.result is None else network.result
    assert variable is not None
    out = np.asarray(network.run(variable, IDS, TYPES))
    if variable.spec.lod is None:
        return out
    texts = np.split(out, np.cumsum([len(ids) for ids in IDS])[:-1])
    return np.stack([row for text in texts for row in (text.mean(0), text[-1])])


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.parametrize("case", CASES)
def test_an_encoder_gives_the_numbers_of_transformers(case: str, tmp_path: Path) -> None:
    write_folder(tmp_path, case)
    np.testing.assert_allclose(numbers(opened(tmp_path)), EXPECTED[case], rtol=2e-5, atol=2e-5)


def test_weights_have_a_first_part_and_older_names(tmp_path: Path) -> None:
    weights = write_folder(tmp_path, "BertModel")
    older = {"bert." + n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): w for n, w in weights.items()}
    save_file(older, tmp_path / "model.safetensors")
    np.testing.assert_allclose(numbers(opened(tmp_path)), EXPECTED["BertModel"], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("case", ["NomicBertModel", "GteModel"])
def test_joined_weights_of_a_networks_first_code_are_parted(case: str, tmp_path: Path) -> None:
    weights = write_folder(tmp_path, case)
    renamed = KINDS[CASES[case][0]].renamed
    joined: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        ((other, part),) = renamed(name)
        if part is not None:
            others = [n for n in weights if renamed(n)[0][0] == other]
            value = np.concatenate([weights[n] for n in sorted(others, key=lambda n: renamed(n)[0][1] or (0, 0))])
        joined[other] = value
    assert len(joined) < len(weights)
    save_file(joined, tmp_path / "model.safetensors")
    np.testing.assert_allclose(numbers(opened(tmp_path)), EXPECTED[case], rtol=2e-5, atol=2e-5)


def test_rows_of_words_like_the_padding_have_the_paddings_position(tmp_path: Path) -> None:
    write_folder(tmp_path, "RobertaModel")
    network = opened(tmp_path)
    assert network.rows is not None and network.positions == 38
    plain, with_padding = (np.asarray(network.run(network.rows, [ids], [[0] * len(ids)])) for ids in ([5, 6, 7], [5, 6, 1, 7]))
    assert abs(plain[1] - with_padding[1]).max() > 1e-3  # it is a row like others
    both = np.asarray(network.run(network.rows, [[9, 9], [5, 6, 1, 7]], [[0] * 2, [0] * 4]))
    np.testing.assert_allclose(both[2:], with_padding, atol=1e-6)


@pytest.mark.parametrize(
    ("case", "changed", "words"),
    [
        ("BertModel", {"model_type": "rwkv"}, "seen the model_type 'rwkv'"),
        ("BertModel", {"position_embedding_type": "relative_key"}, "'relative_key' are not known"),
        ("BertModel", {"hidden_act": "mish"}, "mish"),
        ("Qwen3Model", {"use_sliding_window": True, "sliding_window": 8}, "sliding window"),
        ("Gemma3TextModel", {"use_bidirectional_attention": False}, "without use_bidirectional_attention"),
        ("BertForMaskedLM", {"tie_word_embeddings": False}, "beside the table of words"),
        ("DebertaV2Model", {"conv_kernel_size": 3}, "conv_kernel_size=3"),
    ],
)
def test_settings_without_a_form_are_refused(case: str, changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    write_folder(tmp_path, case)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(SchemaError, match=words):
        opened(tmp_path)


def test_missing_fields_files_and_weights_are_named(tmp_path: Path) -> None:
    weights = write_folder(tmp_path, "BertModel")
    del weights["encoder.layer.1.output.dense.bias"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(FormatError, match=r"encoder\.layer\.1\.output\.dense\.bias"):
        opened(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({n: v for n, v in config.items() if n != "vocab_size"}))
    with pytest.raises(FormatError, match="must have vocab_size"):
        opened(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(FormatError, match=r"config\.json"):
        open_encoder(tmp_path)
