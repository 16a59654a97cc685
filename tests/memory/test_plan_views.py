"""What a user sees of a plan: the drawing, and the page in a browser where there is one."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from support.html_pages import Page

import foreshape as fs
from foreshape import layer
from foreshape.compiler.memory.draw import COLOURS
from foreshape.compiler.memory.page import facts, page
from foreshape.compiler.memory.records import CLASSES

TESTS = Path(__file__).parents[1]
HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp;$\\frac{1}{$\x1b[31m\u202e\ud83d"
BROWSER = next((found for n in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(n))), None)


def resnet() -> fs.Plan:
    return fs.plan(fs.load_program(TESTS / "corpus/resnet50/main.pdmodel"), "linear_1.tmp_1")


def hostile() -> fs.Plan:
    x = layer.data(HOSTILE, shape=["batch", 64])
    fs.default_main_program().global_block.append_op("relu", {"X": x}, {"Out": HOSTILE + "2"})
    return fs.plan(fs.default_main_program(), HOSTILE + "2")


# --- the drawing


@pytest.mark.long
@pytest.mark.parametrize("ending", ["png", *(pytest.param(e, marks=pytest.mark.long) for e in ("svg", "pdf"))])
def test_the_drawing_is_an_image_and_the_same_each_time(tmp_path: Path, ending: str) -> None:
    plan = resnet()
    for name in ("a", "b"):
        plan.draw(tmp_path / f"{name}.{ending}", batch=4)
    data = (tmp_path / f"a.{ending}").read_bytes()
    assert data.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]) and len(data) > 10_000
    if ending != "pdf":
        assert data == (tmp_path / f"b.{ending}").read_bytes()


def test_the_drawing_has_a_box_for_every_buffer_in_the_colour_of_its_class(tmp_path: Path) -> None:
    plan = resnet()
    plan.draw(tmp_path / "plan.svg", batch=4)
    root = ElementTree.parse(tmp_path / "plan.svg").getroot()
    groups = [g for g in root.iter() if g.get("id", "").startswith("PolyCollection")]
    boxes = [e for g in groups for e in g.iter() if e.tag.endswith("path") and "fill" in (e.get("style") or "")]
    buffers = [b for b in plan.buffers(batch=4) if b.size]
    assert len(boxes) == len(buffers) > 100
    seen = sorted(re.search(r"fill: (#\w+)", b.get("style") or "")[1] for b in boxes)
    assert seen == sorted(COLOURS[b.what] for b in buffers)
    assert len(set(COLOURS.values())) == len(CLASSES) == len(COLOURS)


@pytest.mark.long
def test_names_from_a_file_do_not_disturb_the_drawing(tmp_path: Path) -> None:
    plan = hostile()
    plan.draw(tmp_path / "x.svg", batch=100)
    plan.draw(tmp_path / "x.png", batch=100)
    root = ElementTree.parse(tmp_path / "x.svg").getroot()
    assert not [e for e in root.iter() if e.tag.endswith(("script", "image")) or "onerror" in e.attrib]


@pytest.mark.long
def test_a_drawing_of_nothing_and_of_no_image(tmp_path: Path) -> None:
    fs.plan(fs.Program()).draw(tmp_path / "empty.png")
    assert (tmp_path / "empty.png").stat().st_size > 1000
    for name in ("plan.exe", "plan", "plan.html"):
        with pytest.raises(fs.FormatError, match="a drawing is a file that ends in"):
            resnet().draw(tmp_path / name, batch=1)
    with pytest.raises(fs.MemoryPlanError, match=r"depends on x\.0"):
        resnet().draw(tmp_path / "plan.png")


@pytest.mark.long
def test_planning_and_the_page_need_neither_torch_nor_matplotlib(tmp_path: Path) -> None:
    code = f"""
import sys
sys.modules["torch"] = sys.modules["matplotlib"] = None
import foreshape as fs
plan = fs.plan(fs.load_program({str(TESTS / "corpus/lenet/inference.pdmodel")!r}))
plan.write_page({str(tmp_path / "plan.html")!r}, batch=3)
print(plan.peak(batch=3), len(plan.buffers(batch=3)), "numba" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(Path(fs.__file__).parents[1])})
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 100_000
    assert (tmp_path / "plan.html").read_text().startswith("<!doctype html>")


# --- the page, read


def test_the_page_has_every_box_and_the_numbers_of_the_plan() -> None:
    plan = resnet()
    tags = Page(page(plan, {"batch": 4}))
    assert len(tags.scripts) == 2
    data = json.loads(tags.scripts[0])
    buffers = [b for b in plan.buffers(batch=4) if b.size]
    assert data == json.loads(json.dumps(facts(plan, {"batch": 4})))
    assert [(o, s, f, l, CLASSES[c], data["texts"][n], data["texts"][t]) for o, s, f, l, c, n, t, _, _ in data["boxes"]] == [
        (b.offset, b.size, b.first, b.last, b.what, b.name, b.spec) for b in buffers
    ]
    assert data["peak"] == plan.peak(batch=4) and data["bound"] == max(data["timeline"]) == plan.lower_bound(batch=4)
    assert data["timeline"][data["position"]] == data["bound"] and len(data["ops"]) == len(data["timeline"]) == 176
    assert sum(size for _, _, size in data["classes"]) == plan.peak(batch=4)
    assert [h[1] for h in data["holders"]] == [h.size for h in plan.holders(batch=4)[:200]]


def test_the_page_is_one_file_that_fetches_nothing_and_runs_only_its_own_script() -> None:
    text = page(resnet(), {"batch": 4})
    tags = Page(text)
    assert not {"img", "link", "iframe", "object"} & set(tags.tags) and "http://" not in text and "https://" not in text and "@import" not in text
    assert not [a for a, _ in tags.found if a in ("src", "href") or a.startswith("on")]
    policy = next(v for a, v in tags.found if a == "content" and v and "default-src" in v)
    digest = base64.b64encode(hashlib.sha256(tags.scripts[1].encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    assert "innerHTML" not in text and "document.write" not in text and "eval(" not in text


def test_names_from_a_file_are_only_data_in_the_page() -> None:
    text = page(hostile(), {"batch": 100})
    plain = page(resnet(), {"batch": 4})
    assert Page(text).tags == Page(plain).tags and sorted(Page(text).found)[1:] == sorted(Page(plain).found)[1:]
    data = json.loads(Page(text).scripts[0])
    shown = next(t for t in data["texts"] if "owned" in t)
    assert shown.startswith("</script><script>") and not any(c in shown for c in "\x1b\u202e\ud83d") and "\\u001b" in shown
    assert text.isascii() or not set(text) & set("\x1b\u202e\ud83d")


def test_the_page_s_script_is_javascript(tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node here")
    (tmp_path / "page.js").write_text(Page(page(resnet(), {"batch": 4})).scripts[1], encoding="utf-8")
    done = subprocess.run([node, "--check", str(tmp_path / "page.js")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# --- the page, used

POINTS = """
<script>
function point(name, type, x, y, more) {
  const frame = document.getElementById(name), at = frame.getBoundingClientRect();
  frame.dispatchEvent(new PointerEvent(type, { clientX: at.left + x, clientY: at.top + y, pointerId: 1, bubbles: true, ...more }));
}
const seen = [];
const told = document.getElementById("tip");
const tell = () => seen.push(told.style.display === "none" ? "" : [...told.children].map(c => c.textContent));
const chart = charts.find(c => c.id === "arena");
for (const box of plan.boxes.slice(0, 40)) {
  point("arena", "pointermove", xOf(chart, (box[2] + box[3] + 1) / 2), yOf(chart, box[0] + box[1] / 2));
  tell();
}
point("arena", "pointermove", 1, 1);
tell();
point("timeline", "pointermove", xOf(charts[0], plan.position + 0.5), 20);
tell();
const before = [from, to];
const frame = document.getElementById("arena"), place = frame.getBoundingClientRect();
frame.dispatchEvent(new WheelEvent("wheel", { deltaY: -800, clientX: place.left + place.width / 2, clientY: place.top + 50, cancelable: true }));
const zoomed = [from, to];
point("arena", "pointermove", xOf(chart, (from + to) / 2), 30);
document.getElementById("all").click();
const all = [from, to];
let each = Infinity;  // the fastest of several: what else the machine does only adds to it
for (let k = 0; k < 20; k++) {
  const begin = performance.now();
  paint();
  each = Math.min(each, performance.now() - begin);
}
const pixels = new Set();
const drawn = chart.base.getContext("2d").getImageData(0, 0, chart.base.width, chart.base.height).data;
for (let k = 0; k < drawn.length; k += 4) if (drawn[k + 3] === 255) pixels.add("#" + [0, 1, 2].map(c => drawn[k + c].toString(16).padStart(2, "0")).join(""));
document.body.dataset.seen = JSON.stringify({ seen, before, zoomed, all, each, pixels: [...pixels], title: document.title,
  rows: document.querySelectorAll("#holders tr").length, first: document.querySelector("#holders tr").textContent,
  injected: document.querySelectorAll("img").length, peak: document.getElementById("peak").textContent });
</script>
"""


def browse(plan: fs.Plan, symbols: dict[str, int], folder: Path) -> dict[str, Any]:
    """What the page shows in a browser while it is pointed at, zoomed and moved."""
    if BROWSER is None:
        pytest.skip("there is no Chromium here")
    text = page(plan, symbols)
    text = re.sub(r"<meta http-equiv[^>]*>", "", text, count=1).replace("</body>", POINTS + "</body>")  # its policy would let no script of ours run
    (folder / "page.html").write_text(text, encoding="utf-8")
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--window-size=1400,1100",
               "--dump-dom", (folder / "page.html").as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    found = dict(Page(done.stdout).found).get("data-seen")
    assert found is not None, done.stderr[-2000:]
    return json.loads(found)


@pytest.mark.browser
def test_in_a_browser_a_box_tells_what_it_is(tmp_path: Path) -> None:
    plan = resnet()
    seen = browse(plan, {"batch": 4}, tmp_path)
    buffers = [b for b in plan.buffers(batch=4) if b.size][:40]
    for b, tip in zip(buffers, seen["seen"], strict=False):
        assert tip and tip[: 1 + bool(b.spec)] == [t for t in (b.name, b.spec) if t], (b, tip)
        where, what, when = tip[1 + bool(b.spec) :][:3]
        assert f"({b.size:,} bytes) at offset {b.offset:,}" in where and what == b.what
        assert when.startswith(f"from op {b.first}, ") and f", to op {b.last}, " in when
    at = plan.peak_position(batch=4)
    assert seen["seen"][40] == "" and seen["seen"][41][0] == f"op {at}, {plan.ops[at].type}"
    assert seen["before"] == [0, 176] == seen["all"] and 0 < seen["zoomed"][0] < seen["zoomed"][1] < 176
    used = {COLOURS[b.what] for b in plan.buffers(batch=4) if b.size}
    assert used <= set(seen["pixels"])
    assert seen["rows"] == min(200, len(plan.holders(batch=4))) and seen["first"].startswith(plan.holders(batch=4)[0].name)
    assert seen["peak"].startswith("Peak ") and "for batch = 4" in seen["peak"]


@pytest.mark.browser
def test_in_a_browser_hostile_names_are_text(tmp_path: Path) -> None:
    seen = browse(hostile(), {"batch": 100}, tmp_path)
    assert seen["title"] == "Memory plan" and seen["injected"] == 0
    assert seen["seen"][0][0].startswith("</script><script>")


@pytest.mark.browser
def test_in_a_browser_thousands_of_boxes_stay_fluid(tmp_path: Path) -> None:
    x = layer.data("x", shape=["batch", 32])
    for _ in range(1000):
        x = layer.fc(x, 32, "tanh")
    loss = layer.mean(x)
    fs.optimizer.SGD(0.1).minimize(loss)
    plan = fs.plan(fs.default_main_program(), loss)
    assert sum(b.size > 0 for b in plan.buffers(batch=64)) > 3000
    each = browse(plan, {"batch": 64}, tmp_path)["each"]
    assert 0 < each < 150, f"{each} ms to paint all; without a graphics card, and on a busy machine"
