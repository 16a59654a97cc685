"""The JSON files of a model's folder: each refusal names the file."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

from foreshape.apps.generation.json_files import json_object
from foreshape.errors import ForeshapeError, FormatError


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in cast("list[object]", value))


def _is_word(value: object) -> bool:
    content: object = cast("dict[str, object]", value).get("content", "") if isinstance(value, dict) else value
    return isinstance(content, str)


_FIELDS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "a whole number of at least 1": (
        lambda x: _is_whole(x) and x >= 1,
        (
            "vocab_size hidden_size dim d_model embedding_size intermediate_size hidden_dim d_ff num_hidden_layers n_layers num_layers num_attention_heads "
            "n_heads num_heads num_key_value_heads head_dim d_kv max_position_embeddings relative_attention_num_buckets relative_attention_max_distance "
            "global_attn_every_n_layers max_seq_length num_labels n_embd n_head n_layer n_inner n_positions"
        ),
    ),
    "a whole number of at least 0": (lambda x: _is_whole(x) and x >= 0, "type_vocab_size extra_ids"),
    "a whole number": (_is_whole, "pad_token_id max_relative_positions position_buckets local_attention sliding_window"),
    "a number of at least 0": (
        lambda x: isinstance(x, (int, float)) and not isinstance(x, bool) and x >= 0,
        "layer_norm_eps norm_eps rms_norm_eps layer_norm_epsilon rope_theta query_pre_attn_scalar model_max_length",
    ),
    "true or false": (lambda x: isinstance(x, bool), "strip_accents"),
    "a text": (
        lambda x: isinstance(x, str),
        (
            "model_type hidden_act hidden_activation activation feed_forward_proj tokenizer_class default_prompt_name activation_fn "
            "sbert_ce_default_activation_function"
        ),
    ),
    "a list of texts": (_are_texts, "architectures layer_types model_input_names"),
    "a text, or a list of texts": (lambda x: isinstance(x, str) or _are_texts(x), "pooling_mode"),
    "'left' or 'right'": (lambda x: x in ("left", "right"), "truncation_side"),
    "an object": (lambda x: isinstance(x, dict), "id2label rope_parameters rope_scaling"),
    "an object of words by number": (lambda x: isinstance(x, dict) and "0".join(["0", *cast("dict[str, Any]", x)]).isdecimal(), "added_tokens_decoder"),
    "a text, or an object with it as content": (_is_word, " ".join(f"{role}_token" for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))),
}
"""Kinds of fields: in words, as a condition, and the names of such fields in any file."""


def read_settings(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, without a file an empty one.

    Raises:
        FormatError: the file is damaged, or a field is of another kind.
    """
    settings = json_object(file) if file.is_file() else {}
    for kind, (is_right, names) in _FIELDS.items():
        for name in names.split():
            if settings.get(name) is not None and not is_right(settings[name]):
                raise FormatError.must(f"{file}: {name}", kind, f"{settings[name]!r:.100}")
    return settings


@contextmanager
def naming(file: Path) -> Generator[None]:
    """Enclose the use of a file's settings: errors name it."""
    try:
        yield
    except ForeshapeError as error:
        raise error.reworded(f"{file}: {error}") from error
    except Exception as error:  # of a setting that no code expects
        raise FormatError(f"{file}: {type(error).__name__}: {error}") from error
