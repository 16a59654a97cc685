"""The page of a network in a real browser: it is pointed at, clicked and typed into, in light and dark, wide and narrow, with thousands of ops."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import pictured

import foreshape as fs
from foreshape.runtime.report import write_report

pytestmark = pytest.mark.browser
CORPUS = Path(__file__).parents[1] / "corpus"
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    found = next((f for n in ("chromium", "chromium-browser", "google-chrome") if (f := shutil.which(n))), None)
    assert found is not None, "these tests need a Chromium: apt install chromium"
    with sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield made
        made.close()


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens the page of a program; at the end nothing was fetched and nothing went wrong in it. ``PICTURES``: a folder for screenshots."""
    wrong: list[str] = []
    contexts: list[Any] = []

    def open_page(program: fs.Program, title: str = "net", width: int = 1400, height: int = 950, dark: bool = False) -> Any:
        write_report(program, tmp_path / "net.html", title)
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", offline=True)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text))
        page.on("request", lambda asked: wrong.append(asked.url) if not asked.url.startswith("file:") else None)
        page.goto((tmp_path / "net.html").as_uri())
        page.wait_for_selector(".row")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def picture(page: Any, name: str) -> None:
    if "PICTURES" in os.environ:
        page.screenshot(path=str(Path(os.environ["PICTURES"]) / f"{name}.png"), full_page=True)


def load(name: str) -> fs.Program:
    return fs.load_program(CORPUS / name / "main.pdmodel")


def box(page: Any, words: str) -> Any:
    return page.locator("#drawing g[data-layer]").filter(has=page.locator(f":scope > text:text-is('{words}')")).first


def test_a_box_that_is_clicked_tells_its_ops_and_an_op_its_shapes(show: Open) -> None:
    page = show(load("resnet50"), "resnet50")
    assert page.title() == page.inner_text("h1") == "resnet50" and "176 ops in 1 block" in page.inner_text("#about")
    box(page, "conv2d_6").click()
    assert page.inner_text("#detail h2") == "conv2d_6" and "7.4G multiply-adds, batch 32" in page.inner_text("#detail")
    assert page.locator("#drawing .picked").count() == 1
    page.get_by_role("button", name="19 conv2d").click()
    assert page.inner_text("#detail h2") == "conv2d" and "f32[x.0, 64, 56, 56]" in page.inner_text("#detail")
    page.locator("#detail summary", has_text="conv2d_59.tmp_0[2]").click()
    steps = page.locator("#detail details[open] li").all_inner_texts()
    assert steps[0].startswith("conv2d_59.tmp_0[2] = ") and "relu_4.tmp_0[2]" in steps[0] and [s for s in steps if s.startswith("x[2], ")]
    assert page.locator(".row[aria-selected=true]").inner_text().split()[:2] == ["19", "conv2d"]
    picture(page, "light")


def test_the_page_opens_at_the_heaviest_op_and_lists_no_feed_and_no_fetch(show: Open, tmp_path: Path) -> None:
    pixels = fs.layer.data("pixels", shape=["batch", 3, 32, 32])
    wide = fs.layer.conv2d(fs.layer.conv2d(pixels, 4, 3), 64, 5, name="wide")
    result, scope = fs.layer.fc(wide, 3), fs.Scope()
    fs.Executor(seed=0).run(fs.default_startup_program(), scope=scope)
    fs.save_inference_model(tmp_path / "net", [pixels], [result], scope=scope)
    page = show(fs.load_program(tmp_path / "net.pdmodel"))
    assert page.inner_text("#detail h2") == "conv2d" and "wide" in page.inner_text("#detail")
    assert page.locator(".row[aria-selected=true]").inner_text().split()[1] == "conv2d" and page.locator("#drawing .picked").count() == 1
    page.keyboard.press("/")
    page.keyboard.type("fe")
    assert not {"feed", "fetch"} & {row.split()[1] for row in page.locator(".row").all_inner_texts()}
    page = show(load("resnet50"))
    assert page.inner_text("#path") == "the whole network" and "multiply-adds" in page.inner_text("#detail")


def test_the_keyboard_is_enough(show: Open) -> None:
    page = show(load("transformer_adamw"), "transformer", dark=True)
    page.keyboard.press("/")
    page.keyboard.type("softmax_0")
    page.keyboard.press("Enter")
    assert page.inner_text("#detail h2") == "softmax" and page.evaluate("document.activeElement.id") == "list"
    page.keyboard.press("ArrowDown")
    assert page.inner_text("#detail h2") == "matmul (matmul_v2)"
    before = page.evaluate("view.scale")
    page.keyboard.press("+")
    assert page.evaluate("view.scale") > before
    page.keyboard.press("0")
    assert page.evaluate("view.scale") < 1
    batch = page.inner_text("#size")
    page.keyboard.press("]")
    assert batch.startswith("32") and page.inner_text("#size").startswith("64")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help").is_visible()
    page.locator("#chart").focus()
    page.keyboard.press("ArrowRight")
    assert "held, batch 64" in page.inner_text("#tip")
    page.keyboard.press("Enter")
    assert page.inner_text("#detail h2") in page.inner_text("#tip")
    for name in ("search", "order", "list", "drawing", "closer", "batch", "kept", "chart"):
        assert page.evaluate(f"$('{name}').tabIndex >= 0")
    picture(page, "dark")


def test_dark_and_light_are_both_readable(show: Open) -> None:
    def luminance(colour: str) -> float:
        parts = [int(p) / 255 for p in colour.removeprefix("rgb(").rstrip(")").split(",")]
        red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    seen: list[float] = []
    for dark in (False, True):
        page = show(load("lenet_bn_adam"), dark=dark)
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        seen.append(luminance(back))
        texts = "document.querySelectorAll('#drawing g[data-layer] > text')"
        pairs = [("document.body).color", back), ("$('about')).color", back)]
        pairs += [(f"{texts}[{k}]).fill", page.evaluate(f"getComputedStyle({texts}[{k}].parentNode.querySelector('rect')).fill")) for k in (1, 2, 4)]
        for ink, behind in pairs:
            if behind == "none":
                behind = back
            light, less = sorted((luminance(page.evaluate("getComputedStyle(" + ink)), luminance(behind)), reverse=True)
            assert (light + 0.05) / (less + 0.05) >= 4.5, (dark, ink)
    assert seen[0] > 0.9 and seen[1] < 0.05


def test_the_slider_says_the_memory_of_each_batch(show: Open) -> None:
    program = load("resnet50")
    page = show(program)
    plan, ops = fs.plan(program), list(program.global_block.ops)
    for place, batch in ((0, 1), (5, 32), (12, 4096)):
        page.evaluate(f"$('batch').value = {place}; $('batch').dispatchEvent(new Event('input'))")
        assert f"({plan.peak(batch=batch):,})" in page.inner_text("#peak") and f"at op {ops.index(plan.peak_op(batch=batch))}, " in page.inner_text("#peak")
    page.locator("#chart").scroll_into_view_if_needed()
    around = page.locator("#chart").bounding_box()
    page.mouse.move(around["x"] + around["width"] * 0.4, around["y"] + 60)
    assert "held, batch 4,096" in page.inner_text("#tip")


def test_a_group_is_opened_and_left(show: Open) -> None:
    page = show(pictured.long_chain(300))
    assert page.locator("#path").inner_text() == "the whole network"
    group = page.evaluate("net.layers.findIndex(l => l[LAYER.drawn] === 0 && l[LAYER.opens] > 0)")
    page.evaluate(f"pickLayer({group})")
    page.locator("#drawing").focus()
    page.keyboard.press("Enter")
    assert page.locator("#path").inner_text().startswith("the whole network / ")
    page.keyboard.press("u")
    assert page.locator("#path").inner_text() == "the whole network" and page.locator("#drawing .picked").count() == 1
    page.fill("#search", "fc_250.tmp_0")
    page.keyboard.press("Enter")
    assert "fc_250" in page.inner_text("#detail") and page.locator("#drawing .picked").count() == 1


def test_the_gradients_and_updates_of_a_training_program_are_drawn(show: Open) -> None:
    program = load("transformer_adamw")
    page = show(program)
    assert [box(page, name).count() for name in ("forward", "backward", "updates")] == [1, 1, 1]
    gradient = [op.type for op in program.global_block.ops].index("softmax_grad")
    page.fill("#search", "softmax_grad")
    page.keyboard.press("Enter")
    assert page.inner_text("#path").startswith("the whole network / backward") and page.locator("#drawing .picked").count() == 1
    assert page.locator(".row[aria-selected=true]").get_attribute("data-op") == str(gradient)
    page.locator("#path").get_by_role("button", name="the whole network").click()
    assert box(page, "updates").count() == 1
    picture(page, "training")


def test_where_no_rule_was_asked_the_page_compares_sizes(show: Open) -> None:
    page = show(fs.Program.parse("block 0\ninput x: f32[4, 5]\ninput y: f32[3, 2]\nw: f32[4, 5] = relu(X=x)\nz: f32[4, 2] = mul(X=w, Y=y)\n"))
    page.locator(".row").first.click()
    page.locator("#detail summary", has_text="w[1] = x[1]").click()
    steps = page.locator("#detail details[open] li").all_inner_texts()
    assert steps[0].startswith("w[1] = x[1] relu, which has an input of this size") and steps[1].startswith("x[1], ")
    assert "the sizes alone were compared" in page.inner_text("#detail")


def test_a_narrow_window_needs_no_scrolling_to_the_side(show: Open) -> None:
    page = show(load("resnet50"), width=390, height=844)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    box(page, "pool2d").click()
    assert page.inner_text("#detail h2") == "pool2d"
    picture(page, "narrow")


def test_hostile_names_are_text(show: Open) -> None:
    page = show(pictured.hostile(), pictured.HOSTILE)
    page.locator(".row").first.click()
    page.fill("#search", "owned")
    assert page.title().startswith("</script><script>") and page.locator("img").count() == 0 and page.locator(".row").count() == 2
    assert "</script><script>" in page.inner_text("#detail") and page.locator("script").count() == 2


def test_wrong_and_empty_networks_have_a_page(show: Open) -> None:
    page = show(fs.Program.parse("block 0\ninput x: f32[4, 5]\ninput y: f32[3, 2]\nz: f32[4, 2] = mul(X=x, Y=y)\n"))
    assert "ShapeError: fc (mul): " in page.inner_text("#wrong") and "the network has errors" in page.inner_text("#peak")


def test_twenty_thousand_ops_are_few_elements(show: Open) -> None:
    page = show(pictured.long_chain(6000), "many")
    assert page.evaluate("net.ops.length") > 18_000
    assert page.locator(".row").count() < 60 and page.evaluate("document.querySelectorAll('*').length") < 4000
    page.evaluate("list.scrollTop = 300000")
    page.wait_for_function("+document.querySelector('.row').dataset.op > 11000")
    page.fill("#search", "fc_5000.tmp_0")
    page.keyboard.press("Enter")
    assert "fc_5000" in page.inner_text("#detail") and page.locator("#drawing .picked").count() == 1
    page.keyboard.press("]")
    assert page.locator(".row").count() < 60
    picture(page, "many")
