"""The page in a real browser, by mouse, keyboard and finger. Debian's chromium, driven by Playwright.

Skipped, with the reason, where either is missing; ``.ci/run`` installs them. DLADMM_CHROMIUM names another browser.
"""

from __future__ import annotations

import os
import shutil

import pytest

from dladmm.report import read_report, write_page
from report_runs import history, make_comparison, make_run

pytestmark = pytest.mark.slow

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
EVIL = "<script>window.broken=1</script><img src=x onerror=window.broken=1>"

SLIDER = ".plot svg[role=slider]"


@pytest.fixture(scope="module")
def browser():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        pytest.skip(f"Playwright cannot be imported ({error}): pip install 'dladmm[browser]'")
    named = os.environ.get("DLADMM_CHROMIUM")
    program = named or next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no browser is installed (apt-get install chromium, or set DLADMM_CHROMIUM)")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=QUIET)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One run with a hole in its loss, a comparison, and a folder of names that try to break out."""
    folder = tmp_path_factory.mktemp("pages")
    hole = history(30)
    hole["loss"][9:12] = [None] * 3
    hole["loss"][20] = -1.0
    make_run(folder / "one", hole)
    make_comparison(folder / "several")
    make_run(folder / "evil" / "<img src=x onerror=window.broken=1>", dataset=EVIL, method=EVIL)
    make_run(folder / "evil" / ("long" * 20), dataset="b", method="m" * 90, **{"k" * 80: "v" * 300})
    make_run(
        folder / "extreme" / "a", history(loss=[10.0**k for k in range(12)], lagrangian=[-1e199, 1e199] * 6)
    )
    make_run(folder / "extreme" / "b", history(1), dataset="b")
    make_run(folder / "extreme" / "c", {"iteration": [1, 2], "loss": [0.0, 0.0]}, dataset="c")
    make_run(folder / "extreme" / "d", {"iteration": [], "loss": []}, dataset="d")
    bins = [{"rows": 4, "predicted": 10.0 * k, "true": 11.0 * k} for k in range(1, 4)]
    tested = {"n_rows": 12, "r2": 0.9, "mae": 1.5, "rmse": 2.0, "predicted_against_true": bins}
    for method, cost, low in (("slow", 2.0, -30.0), ("quick", 0.1, 0.99990)):
        r2 = [low] + [0.99990 + 0.00001 * k for k in range(11)]
        columns = {"iteration": list(range(1, 13)), "seconds": [cost * k for k in range(1, 13)], "val_r2": r2}
        make_run(folder / "costs" / method, columns, method=method, certificate=None, tested=tested)
    return {
        name: write_page(read_report(folder / name), folder / f"{name}.html").as_uri()
        for name in ("one", "several", "evil", "extreme", "costs")
    }


@pytest.fixture
def visit(browser, pages):
    """Opens a page; at the end nothing may have been complained of, and nothing fetched but the page."""
    contexts, troubles, fetched = [], [], []

    def open_page(name, **options):
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}} | options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: fetched.append(request.url))
        page.goto(pages[name])
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []
    assert [url for url in fetched if url not in (*pages.values(), "data:,")] == []


def paths(page, figure=0):
    """The d of every curve of a figure."""
    curves = page.locator("figure.chart").nth(figure).locator("path.curve").all()
    return [curve.get_attribute("d") for curve in curves]


def until(page, expression):
    """Wait for it. Playwright's own wait evaluates text inside the page, which the page's policy forbids."""
    for _ in range(200):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(25)
    pytest.fail(f"still not so: {expression}")


def background(page):
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def test_every_figure_has_curves_of_several_points(visit):
    for name, count in (("one", 4), ("several", 7)):
        page = visit(name)
        assert page.locator("figure.chart").count() == count
        for figure in range(count):
            assert all(d.count("L") >= 2 for d in paths(page, figure))
            assert paths(page, figure)


def test_seeds_are_thin_and_their_mean_is_not(visit):
    page = visit("several")
    first = page.locator("figure.chart").first
    assert first.locator("path.curve.thin").count() == 6
    assert first.locator("path.curve:not(.thin)").count() == 2


def test_a_hole_breaks_the_line_and_a_logarithmic_axis_leaves_out_what_is_not_positive(visit):
    page = visit("one")
    figure = page.locator("figure.chart").nth(1)
    assert paths(page, 1)[0].count("M") == 2
    log = figure.get_by_role("button", name="Log axis")
    log.click()
    assert log.get_attribute("aria-pressed") == "true"
    assert paths(page, 1)[0].count("M") == 3
    assert "1 value is 0 or less" in figure.inner_text()
    assert "(logarithmic)" in figure.inner_text()


def test_the_legend_hides_and_shows_a_curve(visit):
    page = visit("one")
    button = page.locator("figure.chart").first.get_by_role("button", name="Test accuracy")
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert len(paths(page)) == 1
    button.press("Enter")
    assert len(paths(page)) == 2


def test_tables_sort_by_number_and_word_and_leave_what_is_missing_last(visit):
    page = visit("several")
    table = page.locator("#runs table")
    heading = table.locator("th", has_text="Final test accuracy")

    def column(place):
        return table.locator(f"tbody tr > :nth-child({place})").all_inner_texts()

    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert [float(text) for text in column(2)] == sorted(float(text) for text in column(2))
    heading.get_by_role("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert [float(text) for text in column(2)] == sorted((float(text) for text in column(2)), reverse=True)
    table.locator("th", has_text="Certificate").get_by_role("button").press("Space")
    assert heading.get_attribute("aria-sort") is None
    assert column(9) == ["certified"] * 3 + ["–"] * 3
    table.locator("th", has_text="Certificate").get_by_role("button").click()
    assert column(9) == ["certified"] * 3 + ["–"] * 3
    assert "Sorted by Certificate, descending" in page.locator("#status").text_content()


def test_the_keyboard_reads_zooms_moves_and_comes_back(visit):
    page = visit("one")
    chart = page.locator(SLIDER).first
    chart.focus()
    page.keyboard.press("Home")
    assert chart.get_attribute("aria-valuetext") == "iteration 1: Training accuracy 0.5, Test accuracy 0.4"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("PageUp")
    assert chart.get_attribute("aria-valuenow") == "12"
    assert "iteration 12" in page.locator(".readout").first.inner_text()
    whole = paths(page)
    page.keyboard.press("+")
    zoomed = float(chart.get_attribute("aria-valuemax"))
    assert zoomed < 30
    assert paths(page) != whole
    page.keyboard.press("Shift+ArrowRight")
    assert float(chart.get_attribute("aria-valuemax")) > zoomed
    page.keyboard.press("0")
    assert paths(page) == whole
    page.keyboard.press("Escape")
    assert page.locator(".readout").first.is_hidden()
    page.keyboard.press("End")
    page.keyboard.press("Tab")
    assert page.locator(".readout").first.is_visible()  # still in the chart
    page.locator("#theme").focus()
    assert page.locator(".readout").first.is_hidden()
    chart.focus()
    page.keyboard.press("Control+a")  # the browser's own keys stay its own


def test_tab_comes_first_to_the_skip_link_and_reaches_every_control(visit):
    page = visit("one")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    controls = page.locator("a, button, summary, [tabindex='0']").count()
    seen = set()
    for _ in range(controls + 5):
        seen.add(
            page.evaluate(
                "[...document.querySelectorAll('a, button, summary, [tabindex]')].indexOf(document.activeElement)"
            )
        )
        page.keyboard.press("Tab")
    assert len(seen - {-1}) == controls
    page.locator(SLIDER).first.focus()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_the_mouse_draws_a_box_to_zoom_and_a_double_click_undoes_it(visit):
    page = visit("one")
    chart = page.locator(SLIDER).first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    whole = paths(page)
    page.mouse.move(box["x"] + 150, box["y"] + 60)
    assert "iteration" in page.locator(".readout").first.inner_text()
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 90, steps=3)
    page.mouse.move(box["x"] + 250, box["y"] + 140, steps=3)
    page.mouse.up()
    low, high = (float(chart.get_attribute(f"aria-value{end}")) for end in ("min", "max"))
    assert 1 < low < high < 30
    chart.dblclick(position={"x": 200, "y": 100})
    assert paths(page) == whole
    page.mouse.move(box["x"] + 300, box["y"] + 100)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    until(page, "Number(document.querySelector('svg[role=slider]').ariaValueMax) < 30")
    page.get_by_role("button", name="Reset zoom").first.click()
    assert paths(page) == whole
    for name in ("Zoom in", "Zoom in", "Zoom out", "Zoom out"):
        page.get_by_role("button", name=name).first.click()
    assert paths(page) == whole


def test_a_plain_wheel_scrolls_the_page_and_not_the_chart(visit):
    page = visit("one")
    page.locator(SLIDER).first.hover()
    before, place = paths(page), page.evaluate("window.scrollY")
    page.mouse.wheel(0, 200)
    until(page, f"window.scrollY > {place + 50}")
    page.locator(SLIDER).first.hover()
    page.mouse.wheel(0, -100)
    until(page, f"window.scrollY < {place + 200}")
    assert paths(page) == before


def test_seconds_in_place_of_iterations(visit):
    page = visit("one")
    page.get_by_role("button", name="Seconds instead of iterations").first.click()
    chart = page.locator(SLIDER).first
    assert chart.get_attribute("aria-valuemax") == "15"
    chart.press("End")
    assert chart.get_attribute("aria-valuetext").startswith("15 seconds: ")


def test_methods_of_different_cost_are_compared_by_seconds_and_no_r2_hides_the_others(visit):
    page = visit("costs")
    chart = page.locator(SLIDER).first
    assert chart.get_attribute("aria-valuemax") == "24"
    assert page.get_by_role("button", name="Seconds instead").first.get_attribute("aria-pressed") == "true"
    figure = page.locator("figure.chart").first
    assert "Values below 0 are cut off" in figure.inner_text()
    words = figure.locator("svg[role=slider] text").all_text_contents()
    assert "0.5" in words
    assert "-30" not in words
    figure.get_by_role("button", name="quick").click()
    figure.get_by_role("button", name="slow").click()
    figure.get_by_role("button", name="quick").click()  # now alone, where values differ in the fifth digit
    words = figure.locator("svg[role=slider] text[text-anchor=end]").all_text_contents()
    assert len(set(words)) == len(words) > 3


def test_the_accuracy_is_seen_on_a_phone(visit):
    page = visit("several", viewport={"width": 390, "height": 800})
    assert page.locator(".winner .figure").bounding_box()["y"] < 800
    for table in ("#curves-0 .scroll", "#runs .scroll"):
        frame = page.locator(table).first.bounding_box()
        cell = page.locator(f"{table} tbody tr >> nth=0 >> td >> nth=0").first.bounding_box()
        assert cell["x"] + cell["width"] <= frame["x"] + frame["width"]


def test_dark_follows_the_system_and_the_button_overrules_it(visit):
    light, dark = (visit("one", color_scheme=scheme) for scheme in ("light", "dark"))
    assert background(light) != background(dark)
    curve = "getComputedStyle(document.querySelector('path.curve')).stroke"
    assert light.evaluate(curve) != dark.evaluate(curve)
    button = light.get_by_role("button", name="Dark")
    assert button.get_attribute("aria-pressed") == "false"
    button.click()
    assert background(light) == background(dark)
    assert light.evaluate(curve) == dark.evaluate(curve)
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert background(light) != background(dark)


@pytest.mark.parametrize("name", ["one", "several", "evil"])
@pytest.mark.parametrize("width", [320, 375, 768])
def test_nothing_is_wider_than_a_phone(visit, name, width):
    page = visit(name, viewport={"width": width, "height": 700})
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    until(page, "document.querySelectorAll('details.data table').length > 0")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_finger_reads_and_once_zoomed_moves_along(visit):
    page = visit("one", viewport={"width": 375, "height": 700}, has_touch=True, is_mobile=True)
    chart = page.locator(SLIDER).first
    chart.tap(position={"x": 150, "y": 100})
    assert page.locator(".readout").first.is_visible()
    assert page.locator(".finger").first.is_visible()
    read = float(chart.get_attribute("aria-valuenow"))
    page.get_by_role("button", name="Zoom in").first.tap()
    assert page.locator(".readout").first.is_visible()
    ends = [float(chart.get_attribute(f"aria-value{end}")) for end in ("min", "max")]
    assert (ends[1] - read) / (read - ends[0]) == pytest.approx((30 - read) / (read - 1))  # zoomed in there
    low = float(chart.get_attribute("aria-valuemin"))
    chart.evaluate(
        """(svg) => { const at = svg.getBoundingClientRect();
        const send = (kind, x) => svg.dispatchEvent(new PointerEvent(kind, {pointerType: "touch", button: 0,
          bubbles: true, clientX: at.left + x, clientY: at.top + 90}));
        send("pointerdown", 150); send("pointermove", 110); send("pointerup", 110); }"""
    )
    assert float(chart.get_attribute("aria-valuemin")) > low


@pytest.mark.parametrize("width", [375, 1200])
def test_the_readout_stands_in_its_chart_with_each_value_on_a_line(visit, width):
    page = visit("several", viewport={"width": width, "height": 700})
    chart = page.locator(SLIDER).first
    chart.focus()
    frame = page.locator("figure.chart").first.bounding_box()
    for key in ("Home", "PageUp", "End"):
        page.keyboard.press(key)
        box = page.locator(".readout").first.bounding_box()
        assert frame["x"] <= box["x"]
        assert box["x"] + box["width"] <= frame["x"] + frame["width"]
        assert page.locator(".readout div").first.bounding_box()["height"] < 25
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".readout").first.inner_text().split() == ["iteration", "12", "dlADMM", "0.8483"]


def test_the_chart_follows_the_width_of_the_window(visit):
    page = visit("one")
    before = page.locator(SLIDER).first.get_attribute("viewBox")
    page.set_viewport_size({"width": 500, "height": 700})
    until(page, f"document.querySelector('{SLIDER}').getAttribute('viewBox') !== '{before}'")


def test_the_data_of_a_figure_are_a_table(visit):
    page = visit("several")
    figure = page.locator("figure.chart").first
    figure.locator("details.data summary").click()
    table = figure.locator("details.data table")
    assert table.locator("caption").inner_text().startswith("Test accuracy by iteration, means")
    assert table.locator("thead th").all_inner_texts() == ["Iteration", "dlADMM", "Adam"]
    assert table.locator("tbody tr").count() == 12
    assert table.locator("tbody tr").last.locator("td").all_inner_texts()[1] == "–"  # adam ended at 10


def test_values_at_the_ends_of_what_numbers_can_be_are_drawn(visit):
    page = visit("extreme")
    assert page.locator("figure.chart").count() == 9
    assert page.locator("path.dot").count() > 0  # of the run of one iteration
    for button in page.get_by_role("button", name="Log axis").all():
        button.click()
    for button in page.get_by_role("button", name="Zoom in").all():
        button.click()
    for chart in page.locator(SLIDER).all():
        chart.press("End")
    assert "NaN" not in page.content()
    assert "Infinity" not in page.locator("main").inner_html()


def test_text_from_files_is_shown_and_never_run(visit):
    page = visit("evil")
    page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    assert page.get_by_text(EVIL).count() >= 1
    assert page.locator("img").count() == 0
    assert page.evaluate("window.broken") is None


def test_the_policy_stops_a_script_that_is_not_ours(browser, pages):
    page = browser.new_page()
    page.goto(pages["one"])
    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {text: 'window.broken = 1'}))"
    )
    assert page.evaluate("window.broken") is None
    page.close()


def test_those_who_want_no_motion_get_none(visit):
    duration = "getComputedStyle(document.querySelector('.legend button')).transitionDuration"
    assert set(visit("one", reduced_motion="reduce").evaluate(duration).split(", ")) == {"0s"}
    assert set(visit("one", reduced_motion="no-preference").evaluate(duration).split(", ")) != {"0s"}


def test_without_javascript_the_numbers_and_words_are_there(visit):
    page = visit("several", java_script_enabled=False)
    text = page.locator("main").inner_text()
    assert "Curves and sorting need JavaScript" in text
    assert "0.8583" in text
    page.locator("figure details summary").first.click()
    assert "mean of 3 runs" in page.locator("figure").first.inner_text()
