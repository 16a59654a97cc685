"""The tokenizer and the chat template of a folder of transformers, as facts of a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

from foreshape.apps.generation.json_files import json_object
from foreshape.errors import SchemaError
from foreshape.interop.gguf_pre_tokenizers import GPT2, name_of_cuts
from foreshape.interop.gguf_writer import numbers, text, texts, truth, whole, whole_numbers

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_SPACE: Final = "▁"


def vocabulary_facts(folder: Path, rows: int) -> dict[str, bytes]:
    """Return the facts of the tokenizer and the template in a folder; none without tokenizer.json.

    Args:
        folder: of transformers.
        rows: of the network's table of words: unused ones get names too.

    Raises:
        FormatError: a file is damaged. SchemaError: a tokenizer without a form in GGUF files.
    """
    file = folder / "tokenizer.json"
    if not file.is_file():
        return {}
    tokenizer = json_object(file)
    config = json_object(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    try:
        facts = _facts(file, tokenizer, config, rows)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SchemaError(f"{file} has a tokenizer without a form in GGUF files: {type(error).__name__}: {str(error)[:200]}") from None
    template = folder / "chat_template.jinja"
    source = template.read_text("utf-8") if template.is_file() else config.get("chat_template")
    return facts | ({"tokenizer.chat_template": text(source)} if isinstance(source, str) else {})


def _facts(file: Path, tokenizer: Mapping[str, Any], config: Mapping[str, Any], rows: int) -> dict[str, bytes]:
    model = tokenizer["model"]
    if model.get("type", "BPE") != "BPE" or model.get("dropout") or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise _refusal(file, f"of the kind {model.get('type')!r}")
    table: dict[int, str] = {number: word for word, number in model["vocab"].items()}
    added = {entry["id"]: entry for entry in tokenizer.get("added_tokens") or ()}
    table |= {number: entry["content"] for number, entry in added.items()}
    if table and max(table) >= rows:
        raise _refusal(file, f"of {max(table) + 1:,} words, for a network of {rows:,}")
    words = [table.get(number, f"[PAD{number}]") for number in range(rows)]
    is_fallback = bool(model.get("byte_fallback"))
    types = [_type(number, word, number in table, added, is_fallback, model.get("unk_token")) for number, word in enumerate(words)]
    merges = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
    facts = {"tokenizer.ggml.tokens": texts(words), "tokenizer.ggml.token_type": whole_numbers(types)}
    if is_fallback:
        facts = {"tokenizer.ggml.model": text("llama"), **facts, **_of_scores(file, tokenizer, merges, words, types)}
    else:
        facts = {"tokenizer.ggml.model": text("gpt2"), **facts, "tokenizer.ggml.pre": text(_cuts_name(file, tokenizer))}
        facts["tokenizer.ggml.merges"] = texts([" ".join(merge) for merge in merges])
    numbers_of = {word: number for number, word in enumerate(words)}
    special: dict[str, int] = {}
    for role, name in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        entry: Any = config.get(f"{role}_token") or (model.get("unk_token") if role == "unk" else None)
        content: Any = cast("dict[str, Any]", entry).get("content") if isinstance(entry, dict) else entry
        if content in numbers_of:
            special[role] = numbers_of[content]
            facts[f"tokenizer.ggml.{name}_token_id"] = whole(special[role])
    first, last = _ends(tokenizer.get("post_processor"))
    for role, word in (("bos", first), ("eos", last)):
        if word is not None:
            if special.get(role, numbers_of.get(word)) != numbers_of.get(word):
                raise _refusal(file, f"which puts {word!r} around texts, and has another word for that")
            facts[f"tokenizer.ggml.{role}_token_id"] = whole(numbers_of[word])
        facts[f"tokenizer.ggml.add_{role}_token"] = truth(word is not None)
    return facts


def _type(number: int, word: str, is_there: bool, added: Mapping[int, Mapping[str, Any]], is_fallback: bool, unknown: Any) -> int:
    if not is_there:
        return _UNUSED
    if word == unknown:
        return _UNKNOWN
    if number in added:
        return _CONTROL if added[number].get("special") else _USER_DEFINED
    return _BYTE if is_fallback and re.fullmatch("<0x[0-9A-F]{2}>", word) else _NORMAL


def _of_scores(file: Path, tokenizer: Mapping[str, Any], merges: Sequence[tuple[str, ...]], words: Sequence[str], types: Sequence[int]) -> dict[str, bytes]:
    """Return the scores by which pieces are joined in the order of the merges, and whether a space is put before texts."""
    ranks: dict[str, int] = {}
    for left, right in merges:
        word = left + right
        if ranks.setdefault(word, len(ranks)) != len(ranks) - 1:
            raise _refusal(file, f"which joins {word!r} at several places among its merges")
    pieces = {word for word, kind in zip(words, types, strict=True) if kind == _NORMAL}
    pairs = {(word[:cut], word[cut:]) for word in pieces for cut in range(1, len(word)) if word[:cut] in pieces and word[cut:] in pieces}
    if lost := sorted(pairs ^ set(merges)):
        raise _refusal(file, f"whose merges are not all pairs of its pieces, such as {' '.join(lost[0])!r}")
    scores = [-float(ranks.get(word, len(ranks))) if kind == _NORMAL else 0.0 for word, kind in zip(words, types, strict=True)]
    normalizers, pre = _steps(tokenizer.get("normalizer"), "normalizers"), _steps(tokenizer.get("pre_tokenizer"), "pretokenizers")
    spaced = any(step["type"] == "Prepend" and step["prepend"] == _SPACE for step in normalizers)
    known = all(step["type"] in ("Prepend", "Replace") for step in normalizers)
    for step in pre:
        known &= step["type"] == "Metaspace" and not step.get("split", True)
        spaced |= step.get("prepend_scheme", "always") != "never"
    if not known or not (normalizers or pre):
        raise _refusal(file, "with other steps before its pieces than spaces for sentencepiece")
    return {"tokenizer.ggml.scores": numbers(scores), "tokenizer.ggml.add_space_prefix": truth(spaced)}


def _cuts_name(file: Path, tokenizer: Mapping[str, Any]) -> str:
    """Return the name of the cuts of a text before its pieces of bytes."""
    if any(step["type"] != "NFC" for step in _steps(tokenizer.get("normalizer"), "normalizers")):  # files say nothing of it
        raise _refusal(file, "with a normalizer")
    cuts: list[str] = []
    ends = False
    for step in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] == "Split" and step["behavior"] == "Isolated" and not step.get("invert"):
            cuts.append(step["pattern"].get("Regex") or re.escape(step["pattern"]["String"]))
        elif step["type"] == "Digits" and step.get("individual_digits"):
            cuts.append(r"\p{N}")
        elif step["type"] == "ByteLevel" and not step.get("add_prefix_space"):
            ends = True
            cuts += [GPT2] if step.get("use_regex", True) else []
        else:
            raise _refusal(file, f"with the step {step['type']} before its pieces")
    whole_first = bool(tokenizer["model"].get("ignore_merges"))
    name = name_of_cuts(cuts, whole_first) if ends else None
    if name is None:
        raise _refusal(file, f"with cuts before its pieces that have no name, {' then '.join(cuts)[:200]!r}")
    return name


def _steps(step: Any, field: str) -> list[Any]:
    """Return a step of a tokenizer, or those of a sequence."""
    return [] if step is None else list(step[field]) if step["type"] == "Sequence" else [step]


def _ends(processor: Any) -> tuple[str | None, str | None]:
    """Return the words around each text."""
    for step in _steps(processor, "processors"):
        if step["type"] == "TemplateProcessing":
            places = [entry["SpecialToken"]["id"] if "SpecialToken" in entry else None for entry in step["single"]]
            middle = places.index(None)
            if middle > 1 or len(places) - middle > 2:
                raise ValueError("several special words on one side of a text")
            return (places[0] if middle else None), (places[-1] if len(places) - middle > 1 else None)
    return None, None


def _refusal(file: Path, words: str) -> SchemaError:
    return SchemaError(f"{file} has a tokenizer without a form in GGUF files: one {words}")
