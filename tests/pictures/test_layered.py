"""Boxes in layers: none is on another, arrows go down, and the same input gives the same places."""

from __future__ import annotations

import random
import re

import pytest

from foreshape.core.pictures.chart import drawn_points, line_chart
from foreshape.core.pictures.figures import share, short_bytes, short_count
from foreshape.core.pictures.layered import RANK_GAP, layered
from foreshape.core.pictures.markup import LONGEST, Markup, cut, ends, folded, tag
from foreshape.core.pictures.widths import begin, fit, wide
from foreshape.core.pictures.widths import left as to_left
from foreshape.core.pictures.widths import right as to_right


def crossings(edges: list[tuple[float, float]]) -> int:
    return sum((a - c) * (b - d) < 0 for i, (a, b) in enumerate(edges) for c, d in edges[:i])


@pytest.mark.parametrize("seed", range(6))
def test_boxes_do_not_touch_and_arrows_go_down(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randrange(2, 40)
    sizes = [(draw.uniform(20, 140), draw.uniform(15, 60)) for _ in range(count)]
    arrows = [(a, b) for b in range(1, count) for a in draw.sample(range(b), min(b, draw.randrange(1, 4)))]
    layout = layered(sizes, arrows)
    assert layout == layered(sizes, reversed(arrows))
    boxes = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for (x, y), (w, h) in zip(layout.centres, sizes, strict=True)]
    for at, (left, top, right, bottom) in enumerate(boxes):
        assert left >= -1e-6 and right <= layout.width + 1e-6 and top >= -1e-6 and bottom <= layout.height + 1e-6
        for other in boxes[:at]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
    for a, b in arrows:
        assert boxes[b][1] - boxes[a][3] >= RANK_GAP - 1e-6
    assert sum(s.arrow for s in layout.segments) == len(set(arrows)) and all(s.y <= s.bend + 1e-6 and s.bend < s.land <= s.to_y + 1e-6 for s in layout.segments)


def test_an_arrow_that_passes_ranks_goes_around_the_boxes_and_a_chain_is_straight() -> None:
    layout = layered([(80, 30)] * 4, [(0, 1), (1, 2), (2, 3), (0, 3)])
    xs = [x for x, _ in layout.centres]
    assert max(xs) - min(xs) < 1
    for s in layout.segments:
        if s.far and s.target == -1:
            assert abs(s.to_x - xs[1]) >= 40


def test_arrows_that_need_not_cross_do_not() -> None:
    layout = layered([(40, 20)] * 6, [(0, 5), (1, 4), (2, 3)])
    assert crossings([(layout.centres[a][0], layout.centres[b][0]) for a, b in ((0, 5), (1, 4), (2, 3))]) == 0


def test_the_ends_are_above_and_below_all_boxes() -> None:
    layout = layered([(30, 20)] * 3 + [(1, 0), (1, 0)], [(3, 0), (3, 1), (0, 2), (1, 4), (2, 4)], top=3, bottom=4)
    ys = [y for _, y in layout.centres]
    assert ys[3] == min(ys) and ys[4] == max(ys) and layered([], []).centres == []


def test_numbers_are_short() -> None:
    assert [short_count(n) for n in (None, 0, 999, 1000, 999_499, 999_999, 25_557_032, 10**12)] == ["?", "", "999", "1.00K", "999K", "1.00M", "25.6M", "1.00T"]
    assert [short_bytes(n) for n in (1023, 1024, 102_400, 1 << 30)] == ["1023B", "1.00KiB", "100KiB", "1.00GiB"]
    assert [share(a, 200) for a in (0, 0.5, 1, 100, 200)] == ["", "<1%", "<1%", "50%", "100%"]


def test_what_is_not_markup_is_text() -> None:
    hostile = '<b onclick="x">&\x1b[31m\u202e'
    made = tag("p", hostile, tag("i", "a"), title=hostile, class_="c", stroke_width=2, id=None)
    assert made == ('<p title="&lt;b onclick=&quot;x&quot;&gt;&amp;\\u001b[31m\\u202e" class="c" stroke-width="2">'
                    "&lt;b onclick=&quot;x&quot;&gt;&amp;\\u001b[31m\\u202e<i>a</i></p>")  # fmt: skip
    assert isinstance(made, Markup) and "<script" not in folded("<script>", "</details><script>")
    assert len(tag("p", "x" * 10**6)) < LONGEST + 10 and cut("a" * 50 + "b" * 50, 11) == "aaaa…bbbbbb"


def test_lines_of_a_drawing_are_whole() -> None:
    values = [2 + (7 * at % 11) / 11 for at in range(200)]
    drawn = line_chart(values, "t", "step")
    points = re.search('points="([^"]*)"', drawn)
    assert points is not None and len(points[1]) > LONGEST // 2 and all(re.fullmatch(r"[0-9.]+,[0-9.]+", p) for p in points[1].split(" "))
    assert len(points[1].split(" ")) == 200
    whole = " ".join(f"{at},{at}" for at in range(1000))
    assert tag("polyline", points=whole) == f'<polyline points="{whole}"></polyline>' and "…" not in tag("path", d="M0 0" * 1000)
    assert "…" in tag("text", "x" * 3000) and "…" in tag("text", class_="x" * 3000)


def test_a_long_line_is_drawn_by_the_least_and_the_largest_of_each_stretch() -> None:
    values = [float(at % 97) for at in range(100_000)]
    values[41_234], values[77_777], values[5] = 1e6, -1e6, float("nan")
    places, shown = drawn_points(values)
    assert len(places) <= 600 and places == sorted(set(places)) and {41_234, 77_777} <= set(places) and 5 not in places
    assert shown == [values[at] for at in places] and drawn_points([1.0, None, 2.0]) == ([0, 1, 2], [1.0, None, 2.0])
    assert drawn_points([float("nan")] * 1000) == ([], []) and len(line_chart(values, "t", "step")) < 20_000


def test_of_many_rows_both_ends_are_shown() -> None:
    assert ends(4, 4) == [0, 1, 2, 3] and ends(9, 4) == [0, 1, None, 7, 8] and ends(0, 4) == []


def test_texts_are_as_wide_as_a_terminal_shows_them() -> None:
    assert [wide(t) for t in ("", "fc_0", "模型", "ａb", "e\u0301", "ö")] == [0, 4, 4, 3, 1, 1]
    assert fit("模型模型", 8) == "模型模型" and fit("模型模型", 7) == "模…模型" and wide(fit("模" * 50, 21)) <= 21
    assert fit("a" * 50 + "b" * 50, 11) == cut("a" * 50 + "b" * 50, 11) and begin("模型x", 3) == "模"
    assert to_left("模", 4) + "|" == "模  |" and to_right("模", 4) == "  模"
