"""`TextSettings`: the choice of words and the ends of texts, each within bounds, and their reading from configurations of transformers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import index
from typing import Any, Final, Literal, Self, TypedDict, cast

from foreshape.errors import ForeshapeWarning, FormatError, SchemaError

MOST: Final = 64
"""The words of a text where nothing says how many."""
_WHOLE: Final = (1 << 63) - 1
Words = tuple[int, ...]
ScoreProcessor = Callable[[list[int], Any], Any]
"""A user's change of scores: from the words of a text so far and an array ``[vocabulary]`` in fp32 to the scores to choose by."""


class TextChoices(TypedDict, total=False):
    """The settings of a text in a call; with None, or left out, the model's own hold."""

    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    beams: int | None
    length_penalty: float | None
    early_stopping: bool | Literal["never"] | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    min_new_tokens: int | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[int, float] | None
    score_processor: ScoreProcessor | None


@dataclass(frozen=True)
class TextSettings:
    """Settings of texts, by the names and with the meaning of transformers' ``GenerationConfig``, but for the first seven and the last four.

    Attributes:
        ends: the words at the end of a text (``eos_token_id``).
        most: the most words to be written (``max_new_tokens``); None for ``max_length``, and for 64 without it.
        temperature: 0 takes the word with the best score (``do_sample`` false); otherwise scores are divided by it before a draw from their softmax.
        top_k: draws among so many of the best words; 0 for all.
        beams: the texts kept side by side (``num_beams``).
        seed: of draws; with None they differ from run to run.
        bias: sequences of words, and the number added to the score of the last one behind the others (``sequence_bias``; ``bad_words_ids`` with -inf).
        top_p: draws among the best words, with probabilities of at least this sum (Holtzman et al., "The Curious Case of Neural Text
            Degeneration", 2020); 1 for all.
        min_p: draws among words with at least this share of the best one's probability.
        typical_p: draws among the words with the most usual information, with probabilities of at least this sum (Meister et al., "Locally Typical
            Sampling", 2022); 1 for all.
        epsilon_cutoff, eta_cutoff: draws among words with more than this probability; eta's bound is lower where many words are likely (Hewitt et
            al., "Truncation Sampling as Language Model Desmoothing", 2022); 0 for all.
        length_penalty: beams' sums are divided by their length to the power of this.
        early_stopping: of beams: True ends at as many ended texts as beams; False if no running text is better by its length so far; "never" by
            the longest possible length.
        repetition_penalty: divides the positive scores of words in the text, and multiplies the negative ones (Keskar et al., "CTRL", 2019).
        no_repeat_ngram_size: no sequence of so many words comes twice; 0 without it.
        min_new_tokens, min_length: the fewest words before an end, without the prompt and with it.
        max_length: the most words with the prompt; ``most`` counts before it.
        forced_bos_token_id: the second word of a text.
        forced_eos_token_id: the last word of a text, one of these.
        suppress_tokens, begin_suppress_tokens: words never written, and ones not written first.
        exponential_decay_length_penalty: a number of words, and the growth by each further one of the score of ends.
        remove_invalid_values: scores without a finite value get one.
        renormalize_logits: changed scores are normalized.
        frequency_penalty, presence_penalty: a written word's score is lowered by the first one times the number of its times in the text, and by the
            second one. The words of the prompt do not count (OpenAI's formula).
        logit_bias: pairs of a word, and the number added to its score.
        score_processor: changes the scores last, before the temperature.
    """

    ends: Words = ()
    most: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    beams: int = 1
    seed: int | None = None
    bias: tuple[tuple[Words, float], ...] = ()
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    min_new_tokens: int = 0
    min_length: int = 0
    max_length: int | None = None
    forced_bos_token_id: int | None = None
    forced_eos_token_id: Words = ()
    suppress_tokens: Words = ()
    begin_suppress_tokens: Words = ()
    exponential_decay_length_penalty: tuple[int, float] | None = None
    remove_invalid_values: bool = False
    renormalize_logits: bool = False
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    score_processor: ScoreProcessor | None = None

    def __post_init__(self) -> None:
        for name, read in _READERS.items():
            value = getattr(self, name)
            if value is not None or name not in _MAY_MISS:
                object.__setattr__(self, name, read(name, value))

    @staticmethod
    def bounded(field: str, value: object, name: str) -> Any:
        """Return the value of a field, called ``name`` in errors. Raises `SchemaError` if it is out of the field's bounds."""
        return _READERS[field](name, value)

    def but(self, choices: Mapping[str, Any]) -> Self:
        """Return these settings with others in their places; a None changes nothing."""
        changes = {name: value for name, value in choices.items() if value is not None}
        return replace(self, **changes) if changes else self

    @property
    def changes_scores(self) -> bool:
        """Tell whether scores are changed before a word is chosen."""
        return any(getattr(self, name) != getattr(_PLAIN, name) for name in _CHANGES)

    @property
    def named_words(self) -> Collection[int]:
        """Return the words named by the settings, each needed in the vocabulary."""
        forced = () if self.forced_bos_token_id is None else (self.forced_bos_token_id,)
        return {*forced, *self.forced_eos_token_id, *(word for words, _ in self.bias for word in words)}


def seen(value: object) -> str:
    """Return a value for the words of an error, short whatever it is."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"a whole number of {value.bit_length()} bits"
    return repr(value)[:60]


def whole_between(name: str, value: object, low: int, high: int = _WHOLE) -> int:
    """Return a whole number within bounds. Raises `SchemaError` for anything else."""
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        try:
            number = index(cast("Any", value))
        except TypeError:  # an array of several
            number = low - 1
        if low <= number <= high:
            return number
    bounds = f"of at least {low}" if high == _WHOLE else f"from {low} to {high:,}"
    raise SchemaError.must(name, f"a whole number {bounds}", seen(value))


def _whole(low: int, high: int = _WHOLE) -> Callable[[str, Any], int]:
    return lambda name, value: whole_between(name, value, low, high)


def _number(low: float, high: float, above: bool = False) -> Callable[[str, Any], float]:
    """Return the reader of a number within bounds; ``above`` the lower one."""

    def read(name: str, value: Any) -> float:
        try:
            if not isinstance(value, bool | str | bytes) and low <= value <= high and not (above and value == low):
                return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
        raise SchemaError.must(name, f"a number {'above' if above else 'from'} {low:g} {'and at most' if above else 'to'} {high:g}", seen(value))

    return read


def _truth(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SchemaError.must(name, "True or False", seen(value))
    return value


def _stopping(name: str, value: Any) -> Any:
    if not isinstance(value, bool) and value != "never":
        raise SchemaError.must(name, 'True, False or "never"', seen(value))
    return value


def words_of(name: str, value: Any) -> Words:
    """Return the numbers of words, of one or of a list of them. Raises `SchemaError` for anything else."""
    words = [value] if isinstance(value, int) else value
    if isinstance(words, str | bytes | Mapping) or not hasattr(words, "__iter__"):
        raise SchemaError.must(name, "numbers of words", seen(value))
    return tuple(whole_between(f"a word of {name}", word, -_WHOLE) for word in words)


def _decay(name: str, value: Any) -> tuple[int, float]:
    if not isinstance(value, Sequence) or len(cast("Sequence[Any]", value)) != 2:
        raise SchemaError.must(name, "a number of words and a factor", seen(cast("object", value)))
    start, factor = cast("Sequence[Any]", value)
    return whole_between(f"the start of {name}", start, 0), _number(0, 1000, True)(f"the factor of {name}", factor)


def _biases(name: str, value: Any) -> tuple[tuple[Words, float], ...]:
    out: list[tuple[Words, float]] = []
    for words, number in value:
        sequence = words_of(name, words)
        if not sequence:
            raise SchemaError.must(f"a sequence of {name}", "of at least one word", "none")
        out.append((sequence, number if number == -float("inf") else _number(-1e9, 1e9)(name, number)))
    return tuple(out)


def _pairs(value: Any) -> list[Any]:
    return list(cast("Mapping[Any, Any]", value).items()) if isinstance(value, Mapping) else list(value)


def _word_biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    try:
        pairs = [(word, number) for word, number in _pairs(value)]
    except (TypeError, ValueError):
        raise SchemaError.must(name, "a number for each of some words", seen(value)) from None
    read = _number(-1e9, 1e9)
    return tuple((whole_between(f"a word of {name}", word, 0), number if number == -float("inf") else read(name, number)) for word, number in pairs)


def _function(name: str, value: Any) -> Any:
    if not callable(value):
        raise SchemaError.must(name, "a function of the words so far and the scores", seen(value))
    return value


_READERS: Final[Mapping[str, Callable[[str, Any], Any]]] = {
    "ends": words_of,
    "most": _whole(1),
    "temperature": _number(0, 1000),
    "top_k": _whole(0),
    "beams": _whole(1),
    "seed": _whole(0, (1 << 64) - 1),
    "bias": _biases,
    "top_p": _number(0, 1, True),
    "min_p": _number(0, 1),
    "typical_p": _number(0, 1, True),
    "epsilon_cutoff": _number(0, 1),
    "eta_cutoff": _number(0, 1),
    "length_penalty": _number(-32, 32),
    "early_stopping": _stopping,
    "repetition_penalty": _number(1e-3, 1e3),
    "no_repeat_ngram_size": _whole(0),
    "min_new_tokens": _whole(0),
    "min_length": _whole(0),
    "max_length": _whole(1),
    "forced_bos_token_id": _whole(0),
    "forced_eos_token_id": words_of,
    "suppress_tokens": words_of,
    "begin_suppress_tokens": words_of,
    "exponential_decay_length_penalty": _decay,
    "remove_invalid_values": _truth,
    "renormalize_logits": _truth,
    "frequency_penalty": _number(-2, 2),
    "presence_penalty": _number(-2, 2),
    "logit_bias": _word_biases,
    "score_processor": _function,
}
"""The bounds keep powers and quotients of scores within floats: a length of 2^17 to the power of 32 is 2^544."""
_MAY_MISS: Final = {f.name for f in fields(TextSettings) if f.default is None}
_DRAWS: Final = {"temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "seed"}
_CHANGES: Final = _READERS.keys() - _DRAWS - {"ends", "most", "max_length", "beams", "length_penalty", "early_stopping"}
_PLAIN: Final = TextSettings()

# --- configurations of transformers

_NAMES: Final = {"eos_token_id": "ends", "max_new_tokens": "most", "num_beams": "beams"}
_APART: Final = {"do_sample", "sequence_bias", "bad_words_ids"}
_OWN: Final = {"ends", "most", "beams", "seed", "bias", "frequency_penalty", "presence_penalty", "logit_bias", "score_processor"}
"""Settings with other names in transformers, or with none."""
_TAKEN: Final = _READERS.keys() - _OWN | _NAMES.keys()
_NEUTRAL: Final[Mapping[str, tuple[Any, ...]]] = {
    "guidance_scale": (1,),
    "watermarking_config": (),
    "stop_strings": (),
    "token_healing": (False,),
    "penalty_alpha": (0,),
    "dola_layers": (),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "constraints": (),
    "force_words_ids": (),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "top_h": (1,),
}
"""Settings without a form here, with their values of no effect."""
_CACHES: Final = ("dynamic", "static", "offloaded", "offloaded_static", "hybrid", "hybrid_chunked", "offloaded_hybrid", "offloaded_hybrid_chunked")
_OTHERS: Final[Mapping[str, tuple[Any, ...]]] = {
    "max_time": (),
    "num_return_sequences": (1,),
    "cache_implementation": (*_CACHES, "sliding_window", "paged"),
}
"""Settings of time, of several results and of rounded caches, told of but for their usual values."""
_WITHOUT_EFFECT: Final = {
    "transformers_version",
    "max_cache_len",
    "return_legacy_cache",
    "return_dict_in_generate",
    "pad_token_id",
    "bos_token_id",
    "decoder_start_token_id",
    "is_assistant",
    "target_lookbehind",
    "speculation_type",
    "prompt_lookup_num_tokens",
    "max_matching_ngram_size",
    "compile_config",
    "disable_compile",
    "continuous_batching_config",
    "prefill_chunk_size",
    "low_memory",
    "generation_kwargs",
    "trust_remote_code",
    "use_cache",
    "use_mtp",
    "cache_config",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "output_logits",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "assistant_ensemble_weight",
}
"""Settings of speed, memory, padding and the form of results."""
_USUAL_TOP_K: Final = 50
"""Transformers' number of words to draw among, where a configuration asks for draws alone."""


def settings_of(config: Mapping[str, Any], source: str, alone: bool = True) -> TextSettings:
    """Return the settings in a configuration of transformers, as its ``generate`` takes them.

    Args:
        config: name -> value, such as of ``generation_config.json``. Without such a file the one of the network has them.
        source: its name, for errors and warnings.
        alone: it has no other settings, so unknown ones are warned of.

    Raises:
        SchemaError: a value out of range, or a setting without a form here. FormatError: of another type.
    """
    options = {name: value for name, value in config.items() if value is not None}
    for name, neutral in _NEUTRAL.items():
        value = options.get(name)
        if value and not any(value == choice for choice in neutral):
            raise SchemaError(
                f"{source} has {name}={seen(value)}, which has no form here; give language_model(generation_config=...) without it, such as {{}} for none"
            )
    left_out = [name for name, usual in _OTHERS.items() if name in options and options[name] not in usual]
    if alone:
        names = _TAKEN | _APART | _NEUTRAL.keys() | _OTHERS.keys() | _WITHOUT_EFFECT
        left_out += [name for name in options if name not in names and not name.startswith("_")]
    if left_out:
        warnings.warn(f"{source}: texts are written without {', '.join(map(str, left_out))[:300]}", ForeshapeWarning, stacklevel=2)
    settings: dict[str, Any] = {_NAMES.get(name, name): options[name] for name in _TAKEN & options.keys()}
    if not _truth("do_sample", options.get("do_sample", False)):
        settings.pop("temperature", None)
    else:
        settings = {"temperature": 1.0, "top_k": _USUAL_TOP_K} | settings
        if not settings["temperature"]:
            raise SchemaError(f"{source} has do_sample and temperature=0; a draw needs one above 0")
    if "min_new_tokens" in settings:
        settings.pop("min_length", None)
    try:
        ends = settings["ends"] = words_of("eos_token_id", settings.get("ends", ()))
        bias = [(tuple(words), number) for words, number in _pairs(options.get("sequence_bias", ()))]
        bias += [(tuple(words), -float("inf")) for words in options.get("bad_words_ids", ()) if not (len(words) == 1 and words[0] in ends)]
        return TextSettings(**settings, bias=tuple(bias))
    except SchemaError as error:
        raise error.reworded(f"{source}: {error}") from None
    except (TypeError, ValueError) as error:
        raise FormatError(f"{source} has a setting of another type: {error}") from None
