"""Hints for unknown names and arguments: the name used here, and names of similar spelling."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_MOST: Final = 4
_NO_WORD: Final = re.compile(r"\W")
_SURPLUS: Final = r"takes .*positional arguments? but .*given$"
_NO_PARAMETER: Final = r"got an unexpected keyword argument '(\w+)'"

ARGUMENTS_ELSEWHERE: Final[dict[str, tuple[str, ...]]] = {
    "lr": ("learning_rate", "optimizer"),
    "learning_rate": ("optimizer",),
    "eps": ("epsilon",),
    **dict.fromkeys(("low", "lower"), ("min",)),
    **dict.fromkeys(("high", "upper"), ("max",)),
    "data_type": ("dtype",),
    "betas": ("beta1", "beta2"),
    "beta_1": ("beta1",),
    "beta_2": ("beta2",),
    "nesterov": ("use_nesterov",),
    **dict.fromkeys(("l2", "regularization", "wd"), ("weight_decay",)),
    **dict.fromkeys(("clipnorm", "clipvalue", "global_clipnorm", "grad_clip", "max_grad_norm"), ("clip",)),
    "max_norm": ("clip_norm",),
    **dict.fromkeys(("units", "out_features", "size", "output_dim", "num_classes"), ("output_size", "hidden_size")),
    **dict.fromkeys(("filters", "out_channels"), ("num_filters",)),
    **dict.fromkeys(("filter_size", "pool_size", "kernel", "kernel_sizes", "ksize"), ("kernel_size",)),
    "strides": ("stride",),
    **dict.fromkeys(("paddings", "pad"), ("padding",)),
    **dict.fromkeys(("padding_value", "value"), ("pad_value",)),
    **dict.fromkeys(("dilations", "dilation_rate"), ("dilation",)),
    "act": ("activation",),
    **dict.fromkeys(("p", "rate", "dropout_prob", "drop_rate"), ("probability", "dropout")),
    **dict.fromkeys(("param_attr", "weight_attr", "kernel_initializer", "weight_initializer"), ("weight",)),
    **dict.fromkeys(("bias_attr", "use_bias", "bias_initializer"), ("bias",)),
    **dict.fromkeys(("dim", "axes"), ("axis", "axes")),
    **dict.fromkeys(("keep_dim", "keepdims"), ("keepdim",)),
    **dict.fromkeys(("num_heads", "n_heads", "nhead"), ("heads",)),
    **dict.fromkeys(("dim_feedforward", "d_ff", "hidden_features"), ("inner_size",)),
    **dict.fromkeys(("is_causal", "use_causal_mask"), ("causal",)),
    **dict.fromkeys(("attn_mask", "attention_mask", "key_padding_mask"), ("mask",)),
    **dict.fromkeys(("hidden_units", "hidden_dim"), ("hidden_size",)),
    "sparse": ("is_sparse",),
    "stddev": ("std",),
    **dict.fromkeys(("target", "targets", "labels", "y_true"), ("label",)),
    **dict.fromkeys(("pred", "prediction", "y_pred"), ("x", "logits")),
    **dict.fromkeys(("sequence_length", "seq_length", "seq_len", "lengths"), ("length",)),
    **dict.fromkeys(("class_num", "class_number", "num_total_classes"), ("num_classes",)),
    **dict.fromkeys(("bboxes", "rois"), ("boxes",)),
    "repeat_times": ("repeats",),
    "out_shape": ("shape", "output_size"),
    "num_flatten_dims": ("flatten_last",),
    "training": ("is_test",),
    **dict.fromkeys(("epoch", "num_epochs", "n_epochs"), ("epochs",)),
    **dict.fromkeys(("batch", "bs"), ("batch_size",)),
    **dict.fromkeys(("validation_data", "val_data", "valid"), ("validation",)),
    **dict.fromkeys(("verbose", "quiet"), ("progress",)),
    "loss": ("cost",),
    **dict.fromkeys(("fetch_list", "fetches"), ("fetch",)),
    "feed_dict": ("feed",),
}
"""Argument -> its name here; of several, the function's own."""
_NOTES: Final = {"num_flatten_dims": ", which counts the dims of the features from the end"}
"""Argument -> its different meaning here."""


CHOICES_ELSEWHERE: Final[dict[str, tuple[str, ...]]] = {
    "bfloat16": ("bf16",),
    **dict.fromkeys(("float16", "half", "amp", "mixed", "mixed_float16"), ("fp16",)),
    **dict.fromkeys(("float32", "full", "single"), ("fp32",)),
    **dict.fromkeys(("average", "mean"), ("avg", "AVERAGE", "mean")),
    "avg": ("AVERAGE", "mean"),
    **dict.fromkeys(("channels_last", "channel_last"), ("NHWC", "NDHWC")),
    **dict.fromkeys(("channels_first", "channel_first"), ("NCHW", "NCDHW")),
    **dict.fromkeys(("gpu", "nvidia"), ("cuda",)),
    **dict.fromkeys(("replicate", "edge", "nearest"), ("edge", "replicate", "border")),
    **dict.fromkeys(("constant", "zero"), ("constant", "zeros", "zero")),
    **dict.fromkeys(("linear", "cubic"), ("bilinear", "bicubic")),
    "long": ("int64",),
    "short": ("int16",),
    "byte": ("uint8",),
    "ort": ("onnxruntime",),
    **dict.fromkeys(("minimize", "minimum", "lower"), ("min",)),
    **dict.fromkeys(("maximize", "maximum", "higher"), ("max",)),
}
"""A word of other libraries for a choice -> its words here; of several, the possible ones."""
_MOST_SEARCHED: Final = 5_000
"""The most names compared by spelling."""


def near(name: str, names: Iterable[str]) -> list[str]:
    """Return a few names spelled like a missing one, or with it as a word, the nearest first."""
    import difflib

    lower = {n.lower(): n for n in names}
    lowered = name[:100].lower()
    letters = sorted(lowered)
    searched = [*lower][:_MOST_SEARCHED]
    close = [n for n in searched if len(n) == len(letters) and sorted(n) == letters] or difflib.get_close_matches(lowered, searched, _MOST, 0.7)
    likeness = {n: difflib.SequenceMatcher(None, n, lowered).ratio() for n in close}
    close = sorted((n for n in close if likeness[n] > likeness[close[0]] - 0.1), key=lambda n: (-likeness[n], n))
    words = _NO_WORD.sub("_", lowered).strip("_")
    with_it = [n for n in sorted(lower) if len(name) > 2 and f"_{words}_" in f"_{_NO_WORD.sub('_', n)}_"]
    return [lower[lowered]] if lowered in lower else [lower[n] for n in dict.fromkeys([*close, *with_it])][:_MOST]


def did_you_mean(name: object, names: Iterable[object], display: Callable[[str], str] = repr) -> str:
    """Return ``: did you mean 'relu'?`` for an unknown name, or an empty text where none of ``names`` is like it.

    Args:
        name: the unknown name; anything but a text has none like it.
        names: the known names. Others than texts are passed over.
        display: writes a name.
    """
    if not isinstance(name, str):
        return ""
    texts = [n for n in names if isinstance(n, str)]
    guesses = [n for n in CHOICES_ELSEWHERE.get(name.lower(), ()) if n in texts and n != name] or near(name, texts)
    return f": did you mean {' or '.join(map(display, guesses))}?" if guesses else ""


def near_path(path: str) -> str:
    """Return ``: did you mean 'models/net.onnx'?`` for a path of nothing, by the names in its folder, or the folders beside a missing folder."""
    folder, name = os.path.split(os.path.normpath(path)) if path else ("", "")
    try:
        with os.scandir(folder or os.curdir) as entries:
            names = [e.name for e in islice(entries, _MOST_SEARCHED)]
    except FileNotFoundError:
        return near_path(folder) if folder and folder != path else ""
    except (OSError, ValueError):
        return ""
    if not name:
        return ""
    if "." in name:
        guesses = near(name, names)
    else:
        guesses = sorted(n for n in names if n.startswith(f"{name}."))[:_MOST] or near(name, {n.partition(".")[0]: None for n in names})
    guesses = [n for n in guesses if n != name]
    return f": did you mean {' or '.join(repr(os.path.join(folder, n)) for n in guesses)}?" if guesses else ""


def no_such_name(module: str, name: str, elsewhere: Mapping[str, str], names: Collection[str] = (), room: str = "") -> AttributeError:
    """Return the error for a name missing in a module.

    Args:
        module: its own name.
        name: the missing name.
        elsewhere: names in other libraries -> the hint.
        names: the names of the module.
        room: the users' word for the module.
    """
    equivalent = elsewhere.get(name)
    words = f"module {module!r} has no attribute {name!r}"
    if equivalent is not None:
        return AttributeError(f"{words}: here it is {equivalent}", name=name)
    public = [] if name.startswith("_") else [n for n in names if not n.startswith("_")]
    return AttributeError(words + did_you_mean(name, public, lambda n: f"{room}.{n}" if room else n), name=name)


def no_such_argument(error: TypeError, called: str, parameters: Iterable[str]) -> TypeError:
    """Return Python's error on an unknown keyword with the nearest parameter, or with all; any other error unchanged.

    Args:
        error: Python's error.
        called: the function, or the class.
        parameters: its parameters.
    """
    match = re.search(_NO_PARAMETER, str(error))
    if match is None:
        return error
    name = match[1]
    accepted = [p for p in parameters if p not in ("self", "args", "named")]
    equivalents = [p for p in ARGUMENTS_ELSEWHERE.get(name, ()) if p in accepted]
    words = f"here it is {' and '.join(equivalents) if name == 'betas' else equivalents[0]}{_NOTES.get(name, '')}" if equivalents else None
    if words is None:
        words = did_you_mean(name, accepted, str)[2:] or f"its arguments are {', '.join(accepted)}"
    return TypeError(f"{called}() got an unexpected keyword argument {name!r}: {words}")


def surplus_arguments(error: TypeError, called: str, positional: Collection[str], keywords: Iterable[str], inputs: Iterable[str]) -> TypeError:
    """Return Python's error on too many arguments in order with those taken in order, and with data by the names of their inputs; others unchanged."""
    if re.search(_SURPLUS, str(error)) is None:
        return error
    if "data" not in positional:
        return TypeError(f"{error}: in order it takes {', '.join(positional)}, and by name {', '.join(f'{n}=' for n in keywords)}")
    data = ", ".join(f"{n!r}: ..." for n in inputs) or "'x': ..., 'label': ..."
    first = next(iter(keywords), "")
    return TypeError(f"{error}: data are one dict, input -> array, and all else is named: {called}({next(iter(positional))}, {{{data}}}, {first}=...)")


def tells_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that Python's error on an unknown keyword names the nearest parameter, and on too many in order their names."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **keywords: P.kwargs) -> T:
        try:
            return function(*args, **keywords)
        except TypeError as error:
            if error.__traceback__ is not None and error.__traceback__.tb_next is None:  # it did not begin
                import inspect

                called = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
                parameters = inspect.signature(function).parameters
                hinted = no_such_argument(error, called, parameters)
                if hinted is error:
                    in_order = [n for n, p in parameters.items() if p.kind is not p.KEYWORD_ONLY and n != "self"]
                    program = getattr(getattr(args[0], "block", None), "program", None) if args else None
                    inputs = [] if program is None else [v.name for v in program.global_block.vars.values() if v.need_check_feed]
                    hinted = surplus_arguments(error, called, in_order, [n for n in parameters if n not in in_order and n != "self"], inputs)
                if hinted is not error:
                    raise hinted from None
            raise

    return wrapper
