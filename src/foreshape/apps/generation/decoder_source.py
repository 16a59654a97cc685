"""`DecoderSource`: a decoder as it lies in a folder, a file or a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from foreshape.apps.generation.architecture import Architecture
from foreshape.apps.generation.text_settings import TextSettings
from foreshape.core.data_class import data_class
from foreshape.core.values.torch_proxy import Tensor
from foreshape.language.program import Variable
from foreshape.machine.kernels.grouped_weights import GroupedNumbers


def _nothing(_: Mapping[str, Variable]) -> None:
    """Refuse nothing."""


@data_class(frozen=True)
class DecoderOrigin:
    """A decoder's description, without its weights.

    Attributes:
        architecture: the description.
        config: its configuration of transformers.
        place: the folder or the GGUF file, if it was read from one.
    """

    architecture: Architecture
    config: Mapping[str, Any]
    place: str | None = None


@data_class(frozen=True)
class DecoderSource:
    """A decoder's description, its weights by the names of its parameters, and the settings of its texts.

    Attributes:
        architecture: the description.
        settings: returns the settings of texts.
        value: from a parameter's name to its value in floats; None if it is missing.
        prepare: is called with all parameters, by name, before values are read; refuses a source of another network.
        check: is called behind the last value; refuses or tells values without a place in the network.
        is_rounded: tells whether the source has a parameter in blocks of few bits.
        rounded: from the name of such a parameter to its numbers and scales, or to its value in floats, if it is so there.
        origin: is kept by the model.
    """

    architecture: Architecture
    settings: Callable[[], TextSettings]
    value: Callable[[str], Tensor | None]
    prepare: Callable[[Mapping[str, Variable]], None] = _nothing
    check: Callable[[], None] = lambda: None
    is_rounded: Callable[[str], bool] = lambda _: False
    rounded: Callable[[str], Tensor | GroupedNumbers | None] = lambda _: None
    origin: DecoderOrigin | None = None
