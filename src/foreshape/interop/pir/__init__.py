"""PaddlePaddle 3's programs (PIR, `NAME.json`) as programs of the operators of 2.x.

`document` reads the JSON to a `pir_graph`. `translation` writes the graph with the operators of 2.x, by the table (`table`, operators.txt), the functions
of `foreshape.interop.forms`, and those of `block_rules`, `constant_rules` and `ends`. Parameters stay in their file; its format is one for both. There is no
writer: a program is saved as ``.pdmodel``.
"""

from __future__ import annotations

import warnings

from foreshape.core.gc_pause import collector_waits
from foreshape.errors import ForeshapeWarning, FormatError
from foreshape.interop.pir import block_rules as block_rules
from foreshape.interop.pir import constant_rules as constant_rules
from foreshape.interop.pir import ends as ends
from foreshape.interop.pir.by_table import by_table
from foreshape.interop.pir.call import PirCall
from foreshape.interop.pir.document import read_graph
from foreshape.interop.pir.translation import Translation
from foreshape.language.program.program import Program
from foreshape.language.wire.limits import DEFAULT_LIMITS, Limits

NEWEST = 4
"""The newest known version of the format, of PaddlePaddle 3.3."""


@collector_waits
def read_program(data: bytes, limits: Limits | None = None) -> Program:
    """Return the program in these bytes, of a file of PaddlePaddle 3.

    Raises:
        FormatError: it is none; the message has the path in the JSON.
    """
    graph = read_graph(data, limits or DEFAULT_LIMITS)
    if graph.version > NEWEST:
        warnings.warn(ForeshapeWarning(f"the program's format has version {graph.version}, and {NEWEST} is the newest known here"), stacklevel=2)
    if graph.version < 0:
        raise FormatError.must("base_code.version", "at least 0", f"{graph.version}")
    return Translation(graph, by_table, PirCall).run()
