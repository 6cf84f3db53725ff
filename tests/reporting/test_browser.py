"""Pages in a real browser: no requests, no errors, and working figures.

Needs the package playwright, and Chromium of the distribution.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from perfmodel import compare, make_job, plan, report, sweep
from perfmodel.validation import shipped_cases, validate
from tests.clock import work_s
from tests.reporting.pages import tables

pytest.importorskip("bokeh", reason="needs the extra 'report'")
playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
]

MOST_BYTES, MOST_TIMES = 3_000_000, 25
"""Limits on size and opening time of the page of 64 workers."""

TOOLTIPS = """(() => {
    const all = (root) => [...root.querySelectorAll("*")].flatMap(
        (e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
    return all(document).filter((e) => e.matches(".bk-Tooltip"))
        .map((e) => (e.shadowRoot ?? e).textContent).join(" ");
})()"""
"""The text of all tooltips of a page."""

LOADING = """
schema = "perfmodel.workload/1"
name = "speech"
source = { kind = "estimated", text = "invented" }
gradients = { bytes = "240MB", tensors = 60 }
[[timings]]
device = "lab-gpu"
batch_size = 32
step_s = "120ms"
data_loading_s = "10ms"
source = { kind = "estimated", text = "invented" }
"""
"""A workload whose timeline has long names beside its rows: those of data loaders."""

WIDE, PHONE = (1200, 900), (390, 844)


class Opened(NamedTuple):
    """A page with its requests, errors and opening time."""

    page: Any
    requests: list[str]
    wrong: list[str]
    seconds: float

    def run(self, script: str) -> Any:
        return self.page.evaluate(script)

    def range(self) -> list[float]:
        """The x-range of the timeline."""
        found: list[float] = self.run(
            "(() => { const r = Bokeh.documents.flatMap((d) => [...d.all_models])"
            ".find((m) => m.name === 'timeline').x_range; return [r.start, r.end]; })()"
        )
        return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        result = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield result
        result.close()


def opened(
    browser: Any,
    path: Path,
    size: tuple[int, int] = WIDE,
    scheme: str = "light",
    touch: bool = False,
) -> Opened:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, has_touch=touch
    )
    page = context.new_page()
    requests: list[str] = []
    wrong: list[str] = []
    page.on("request", lambda request: requests.append(request.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "console",
        lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None,
    )
    begin = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_function(
        "document.documentElement.dataset.painted || typeof Bokeh === 'undefined'"
    )
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return Opened(page, requests, wrong, time.perf_counter() - begin)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of 64 workers, with the largest possible timeline."""
    path = tmp_path_factory.mktemp("report") / "64.html"
    report(model="resnet50", device="v100", arch="ps", workers=64, options={"servers": 4}).to_html(
        path
    )
    return path


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind of result."""
    folder = tmp_path_factory.mktemp("pages")
    job = {"model": "resnet18", "workers": 4}
    results: dict[str, Any] = {
        "lines": sweep(**job | {"workers": [1, 2, 4, 8], "arch": ["ring", "ps"]}),
        "words": sweep(**job, arch=["ring", "ps"]),
        "comparison": compare([make_job(**job, arch=a) for a in ("ring", "ps", "asp")]),
        "plan": plan(model="resnet50", dataset_size=10_000, workers=[4, 8], fidelity="coarse"),
        "validation": validate(shipped_cases(), fidelity="coarse"),
    }
    for name, result in results.items():
        result.report(folder / f"{name}.html")
    report(**job, arch="asp", jitter=0.2).to_html(folder / "job.html")
    (folder / "speech.toml").write_text(LOADING, encoding="utf-8")
    report(workload=folder / "speech.toml", workers=4, arch="ring").to_html(folder / "loading.html")
    return {path.stem: path for path in folder.glob("*.html")}


def test_the_report_of_a_large_job_is_small_and_opens_fast(browser: Any, large: Path) -> None:
    assert large.stat().st_size < MOST_BYTES
    tries = [opened(browser, large) for _ in range(4)]  # the first also starts the browser
    assert [each.wrong for each in tries] == [[]] * len(tries)
    assert min(each.seconds for each in tries) < MOST_TIMES * work_s()


@pytest.mark.parametrize("name", ["job", "lines", "words", "comparison", "plan", "validation"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_make_no_requests_and_have_no_errors(
    browser: Any, pages: dict[str, Path], name: str, scheme: str
) -> None:
    result = opened(browser, pages[name], scheme=scheme)
    assert result.requests == [pages[name].as_uri()]
    assert result.wrong == []
    assert result.run("document.querySelectorAll('.figure').length") == result.run(
        "document.querySelectorAll('.figure .bk-Figure').length"
    )
    assert result.run("document.documentElement.dataset.painted") == scheme


def test_canary_a_request_and_an_error_are_noticed(
    browser: Any, pages: dict[str, Path], tmp_path: Path
) -> None:
    path = tmp_path / "wrong.html"
    text = pages["words"].read_text(encoding="utf-8")
    planted = '<img src="missing.png"><script>console.error("planted")</script><footer>'
    path.write_text(text.replace("<footer>", planted), encoding="utf-8")
    result = opened(browser, path)
    assert (tmp_path / "missing.png").as_uri() in result.requests
    assert "planted" in result.wrong


@pytest.mark.parametrize("name", ["job", "loading", "lines", "comparison", "plan", "validation"])
def test_a_phone_does_not_scroll_sideways(browser: Any, pages: dict[str, Path], name: str) -> None:
    result = opened(browser, pages[name], PHONE, touch=True)
    assert result.run("document.documentElement.scrollWidth") <= PHONE[0]
    assert result.wrong == []


def test_the_wheel_zooms_the_timeline_and_dragging_moves_it(
    browser: Any, pages: dict[str, Path]
) -> None:
    result = opened(browser, pages["job"])
    start, end = result.range()
    figure = result.page.locator("#timeline .bk-Figure")
    figure.scroll_into_view_if_needed()
    box = figure.bounding_box()
    x, y = box["x"] + 0.6 * box["width"], box["y"] + 0.5 * box["height"]
    result.page.mouse.move(x, y)
    assert result.range() == [start, end]
    result.page.mouse.wheel(0, -300)
    result.page.wait_for_timeout(300)
    near, far = result.range()
    assert far - near < 0.95 * (end - start)
    assert near >= start
    assert far <= end
    result.page.mouse.down()
    result.page.mouse.move(x - 60, y, steps=5)
    result.page.mouse.up()
    result.page.wait_for_timeout(300)
    moved = result.range()
    assert moved[0] > near
    assert moved[1] - moved[0] == pytest.approx(far - near, rel=1e-6)
    assert result.wrong == []


def test_hovering_over_a_block_shows_its_details(browser: Any, pages: dict[str, Path]) -> None:
    result = opened(browser, pages["job"])
    figure = result.page.locator("#timeline .bk-Figure")
    figure.scroll_into_view_if_needed()
    box = figure.bounding_box()
    message = ""
    for step in range(20):  # workers are busy most of the time, but there are gaps
        result.page.mouse.move(box["x"] + box["width"] * (0.3 + 0.03 * step), box["y"] + 90)
        result.page.wait_for_timeout(50)
        message = result.run(TOOLTIPS)
        if "worker" in message:
            break
    assert "worker" in message


GROUND = "getComputedStyle(document.body).backgroundColor"
AXIS = """(() => Bokeh.documents.flatMap((d) => [...d.all_models])
    .find((m) => m.type === "LinearAxis").axis_label_text_color)()"""
CHECKED = "document.querySelector('input[name=theme]:checked').value"


def test_the_reader_chooses_light_or_dark_and_the_page_keeps_it(
    browser: Any, pages: dict[str, Path]
) -> None:
    result = opened(browser, pages["job"], scheme="light")
    light, ink = result.run(GROUND), result.run(AXIS)
    assert result.run(CHECKED) == "system"
    result.page.get_by_label("Dark").check()
    assert result.run(GROUND) != light
    assert result.run(AXIS) != ink
    assert result.run("document.documentElement.dataset.painted") == "dark"
    result.page.reload()
    result.page.wait_for_function("document.documentElement.dataset.painted")
    assert result.run(CHECKED) == "dark"
    assert result.run(GROUND) != light
    result.page.get_by_label("System").check()
    assert (result.run(GROUND), result.run(AXIS)) == (light, ink)
    result.page.emulate_media(color_scheme="dark")
    result.page.wait_for_function("document.documentElement.dataset.painted === 'dark'")
    assert result.run(GROUND) != light
    assert result.run(AXIS) != ink
    result.page.get_by_label("Light").check()
    assert (result.run(GROUND), result.run(AXIS)) == (light, ink)
    assert result.wrong == []


def test_light_and_dark_can_be_chosen_from_the_keyboard(
    browser: Any, pages: dict[str, Path]
) -> None:
    result = opened(browser, pages["words"])
    light = result.run(GROUND)
    result.page.keyboard.press("Tab")
    assert result.run("document.activeElement.name") == "theme"
    result.page.keyboard.press("ArrowRight")
    assert (result.run(CHECKED), result.run(GROUND)) == ("light", light)
    result.page.keyboard.press("ArrowRight")
    assert result.run(CHECKED) == "dark"
    assert result.run(GROUND) != light


def test_tables_in_the_browser_equal_those_in_the_file(
    browser: Any, pages: dict[str, Path]
) -> None:
    result = opened(browser, pages["job"])
    seen = result.run(
        "Object.fromEntries([...document.querySelectorAll('table')].map((t) => [t.dataset.name,"
        "[...t.tBodies[0].rows].map((r) => [...r.cells].map((c) => c.dataset.value))]))"
    )
    assert seen == tables(pages["job"].read_text(encoding="utf-8"))
    assert len(seen) >= 8
