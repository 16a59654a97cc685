"""The short form of a plan for ranks at a prompt and in a notebook, for any formula."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foreshape.errors import ForeshapeError
from foreshape.memory import byte_text
from foreshape.memory.formula import peak_lines
from foreshape.pictures.figures import plural
from foreshape.pictures.markup import card, cut, escape, markup_table, preformatted

if TYPE_CHECKING:
    from foreshape.cost.ranks_plan import RanksPlan

_WIDTH: Final = 160


def heading(plan: RanksPlan) -> str:
    """Return the strategy and the sizes of the whole step."""
    given = ", ".join(f"{escape(n)} = {v:,}" for n, v in plan.sizes.items())
    return cut(f"RanksPlan: {plan.name}" + (f", {given}" if given else ""), _WIDTH)


def rows(plan: RanksPlan) -> list[tuple[str, str]]:
    """Return the facts of a line each: the peak, the messages, the time, the other strategies; or the missing sizes."""
    out: list[tuple[str, str]] = []
    try:
        peak, found = plan.peak(), plan.collectives()
        out.append(("a rank holds", f"{byte_text(peak)} at the peak"))
        sent = sum(one.on_the_link for one in found)
        out.append(("a rank sends", f"{byte_text(sent)} in a step, by {plural(len(found), 'collective')} over {plan.network}" if found else "nothing"))
        if plan.device is not None:
            out.append(("a step takes", f"{1e3 * plan.timeline().seconds:.4g} ms"))
        if len(plan.alternatives) > 1:
            out.append(("also planned", ", ".join(f"{one.name} {byte_text(one.peak())}" for one in plan.alternatives if one is not plan)))
    except ForeshapeError as error:
        out.append(("not told", str(error).partition("\n")[0]))
    return out


def text(plan: RanksPlan) -> str:
    """Return a plan at a prompt."""
    lines = [heading(plan), *(f"  {name} {words}" for name, words in rows(plan))]
    return "\n".join(cut(line, _WIDTH) for line in [*lines, *(f"  {line}" for line in peak_lines(plan.peak_formula(), plan.shared_words))])


def html(plan: RanksPlan) -> str:
    """Return a plan in a notebook."""
    return card(heading(plan), markup_table(("", ""), rows(plan)), preformatted("\n".join(peak_lines(plan.peak_formula(), plan.shared_words))))
