# SPDX-License-Identifier: MIT
"""test_report_zoom - the zoom of a report's maps in headless Chromium: it shows what the page's own figures say, and the still picture comes back; how pages are packed."""

import pytest
import zoomkit
from browserkit import (  # noqa: F401 - the fixture is found by its name
    ActionChains,
    By,
    Keys,
    WebDriverWait,
    browser,
    errors,
    load,
    requests,
    theme,
)

import report.depth as report_depth

PATIENCE_S = 30
BLOCK = 37  # of the first region: the squares that the tests look into
PLUS, MINUS, ALL = range(3)

# {class: how many squares of the zoom's layer begin in a rectangle}
DRAWN = """
var x = arguments[1], y = arguments[2], side = arguments[3], found = {};
arguments[0].querySelectorAll('.deep path').forEach(function (path) {
  (path.getAttribute('d').match(/M[^h]+/g) || []).forEach(function (at) {
    var xy = at.slice(1).split(' ').map(Number), name = path.getAttribute('class');
    if (xy[0] >= x && xy[0] < x + side && xy[1] >= y && xy[1] < y + side) { found[name] = (found[name] || 0) + 1; }
  });
});
return found;
"""
# A pointer goes down and up at a place of the picture, then whatever is asked for.
CLICK = """
var svg = arguments[0], at = svg.createSVGPoint(), on;
at.x = arguments[1]; at.y = arguments[2];
at = at.matrixTransform(svg.getScreenCTM());
['pointerdown', 'pointerup', arguments[3]].forEach(function (name) {
  svg.dispatchEvent(new PointerEvent(name, {bubbles: true, pointerId: 7, clientX: at.x, clientY: at.y}));
});
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """(a trace's page, a process's page)"""
    folder = tmp_path_factory.mktemp("zoom")
    with pytest.MonkeyPatch.context() as patch:
        trace = zoomkit.trace_page(folder / "trace.html", patch)
    return trace, zoomkit.slots_page(folder / "slots.html")


def opened(browser, page, number=0):
    """The page's map of that number, its pages unpacked."""
    load(browser, page)
    svg = browser.find_elements(By.CSS_SELECTOR, "svg.map")[number]
    WebDriverWait(browser, PATIENCE_S).until(lambda _: svg.get_attribute("data-depth"))
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    return svg


def buttons(browser, number=0):
    """+, - and all of a map."""
    return browser.find_elements(By.CLASS_NAME, "zoombar")[number].find_elements(By.TAG_NAME, "button")


def said(browser, number=0):
    """What stands beside a map."""
    return browser.find_elements(By.CLASS_NAME, "says")[number].text


def wide(svg):
    """How much of the map is in view."""
    return float(svg.get_dom_attribute("viewBox").split()[2])


def at(browser, svg, x, y):
    """Chooses what is at a place of the picture, and zooms in until it is wide on the screen."""
    browser.execute_script(CLICK, svg, x, y, "none")
    while wide(svg) > 960 / 32:
        buttons(browser)[PLUS].click()


def test_buttons_wheel_and_keys_zoom_and_each_way_back_restores_all(browser, pages):
    svg = opened(browser, pages[0])
    still, plus = svg.get_dom_attribute("viewBox"), buttons(browser)[PLUS]
    layer = svg.find_element(By.CLASS_NAME, "deep")

    def zoomed():
        return wide(svg) < 960 and layer.find_elements(By.CSS_SELECTOR, "path.h8")

    def restored():
        return svg.get_dom_attribute("viewBox") == still and not layer.find_elements(By.CSS_SELECTOR, "path.h8")

    for _ in range(3):
        plus.click()
    assert zoomed() and wide(svg) == 960 / 8
    buttons(browser)[ALL].click()
    assert restored() and not buttons(browser)[MINUS].is_enabled()
    svg.send_keys("+++")
    assert zoomed()
    svg.send_keys("-")
    assert zoomed() and wide(svg) == 960 / 4
    svg.send_keys(Keys.HOME)
    assert restored()
    browser.execute_script("arguments[0].focus()", svg)
    ActionChains(browser).scroll_from_origin(_middle(svg), 0, -600).perform()
    WebDriverWait(browser, PATIENCE_S).until(lambda _: zoomed())
    ActionChains(browser).scroll_from_origin(_middle(svg), 0, 900).perform()
    WebDriverWait(browser, PATIENCE_S).until(lambda _: restored())
    browser.execute_script(CLICK, svg, 305, 20, "dblclick")
    assert wide(svg) == 480
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert restored()
    assert errors(browser) == [] and all(u.startswith(("file:", "data:", "about:")) for u in requests(browser))


def _middle(svg):
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin

    return ScrollOrigin.from_element(svg)


def test_a_wheel_that_passes_by_scrolls_the_page(browser, pages):
    svg = opened(browser, pages[0])
    browser.execute_script("document.body.style.minHeight = '4000px'; window.scrollTo(0, 0)")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    before = browser.execute_script("return window.scrollY")
    ActionChains(browser).scroll_from_origin(_middle(svg), 0, 300).perform()
    WebDriverWait(browser, PATIENCE_S).until(lambda b: b.execute_script("return window.scrollY") > before)
    assert wide(svg) == 960


def test_a_page_of_a_trace_shows_the_grains_that_its_figures_have(browser, pages):
    svg = opened(browser, pages[0])
    carried = zoomkit.carried(pages[0])["profile"]["occupancy_at_peak"]
    told = zoomkit.unpacked(carried["depth"])[0]
    top = float(svg.find_element(By.CSS_SELECTOR, "g[data-region]").get_attribute("data-top"))
    for page in range(BLOCK * 4, BLOCK * 4 + 3):
        x, y = BLOCK * 10 + page % 2 * 4, top + page % 4 // 2 * 4
        at(browser, svg, x + 2, y + 2)
        drawn = browser.execute_script(DRAWN, svg, x, y, 4)
        live = zoomkit.live(told["grains"][page])
        assert (drawn.get("h8", 0), drawn.get("void", 0)) == (live, 256 - live)
        words = said(browser)
        assert f"page 0x{0x7F0000000000 + page * 4096:x}, 4.1 KB" in words
        assert f"{live} of its 256 pieces of 16 B hold live bytes" in words
        assert told["bytes"][page] == 16 * live and (f"{live * 16 / 1000:.1f} KB\n" in words or not live)


def test_between_block_and_grain_each_page_is_a_square_as_dark_as_it_is_full(browser, pages):
    svg = opened(browser, pages[0])
    told = zoomkit.unpacked(zoomkit.carried(pages[0])["profile"]["occupancy_at_peak"]["depth"])[0]
    browser.execute_script(CLICK, svg, BLOCK * 10 + 2, 16, "none")
    for _ in range(3):
        buttons(browser)[PLUS].click()
    shades = {}
    for live_bytes in told["bytes"][BLOCK * 4 : BLOCK * 4 + 4]:
        shade = f"h{min(8, live_bytes * 9 // 4096)}" if live_bytes else "void"
        shades[shade] = shades.get(shade, 0) + 1
    drawn = browser.execute_script(DRAWN, svg, BLOCK * 10 + 0.01, 14.01, 8)
    assert {k: n for k, n in drawn.items() if k[0] in "hv"} == shades


def test_a_page_of_a_process_opens_into_its_slots(browser, pages):
    svg = opened(browser, pages[1])
    for place in (17, 129):
        page = zoomkit.carried(pages[1])["pages"][place]
        x, y = place % 96 * 10, 14 + place // 96 * 10
        svg.send_keys(Keys.HOME)
        at(browser, svg, x + 4, y + 4)
        drawn = browser.execute_script(DRAWN, svg, x + 0.01, y + 0.01, 8)
        assert drawn["h8"] == page["live"] == zoomkit.live(page["bits"])
        assert drawn["void"] == page["slots"] - page["live"]
        assert f"60 slots of 64 B: {page['live']} live" in said(browser)


def test_arrows_go_from_square_to_square_and_say_what_each_is(browser, pages):
    svg = opened(browser, pages[1], 1)
    pages_of_heap = zoomkit.carried(pages[1])["pages"][130:]
    buttons(browser, 1)[PLUS].send_keys(Keys.TAB)
    assert browser.switch_to.active_element == svg and " of heap h (id 2)" in said(browser, 1)
    browser.execute_script(CLICK, svg, 1, 15, "none")
    svg.send_keys(Keys.ARROW_RIGHT)
    bits = int(pages_of_heap[0]["bits"][::-1], 16)
    first, end = 500 // 96, 2 * 500 // 96
    live = (bits >> first & ((1 << (end - first)) - 1)).bit_count()
    assert said(browser, 1).startswith(f"slots {first} to {end - 1}: {live} live\npage 0x900000 of heap h (id 2)")
    svg.send_keys(Keys.ARROW_DOWN)
    assert "page 0x910000" in said(browser, 1)
    svg.send_keys("+++", Keys.ARROW_LEFT)
    before = said(browser, 1)
    assert "slot 8 at 0x910400: " in before
    svg.send_keys(Keys.ARROW_UP, Keys.ARROW_UP, Keys.ARROW_UP)
    assert "page 0x900000" in said(browser, 1)


def test_two_fingers_zoom_and_one_moves(browser, pages):
    svg = opened(browser, pages[0])
    box = browser.execute_script("var r = arguments[0].getBoundingClientRect(); return [r.left, r.top]", svg)

    def touch(kind, *xs):
        points = [{"x": box[0] + x, "y": box[1] + 20, "id": i} for i, x in enumerate(xs)]
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 300, 340)
    for apart in (40, 80, 160):
        touch("touchMove", 320 - apart, 320 + apart)
    touch("touchEnd")
    WebDriverWait(browser, PATIENCE_S).until(lambda _: wide(svg) < 960 / 3)
    left = float(svg.get_dom_attribute("viewBox").split()[0])
    touch("touchStart", 400)
    touch("touchMove", 350)
    touch("touchMove", 300)
    touch("touchEnd")
    WebDriverWait(browser, PATIENCE_S).until(lambda _: float(svg.get_dom_attribute("viewBox").split()[0]) > left)


def test_names_in_a_map_are_text_in_one_line_and_run_nothing(browser, pages):
    for page in pages:
        svg = opened(browser, page)
        browser.execute_script(CLICK, svg, 3, 16, "mousemove")
        for words in (said(browser), browser.find_element(By.ID, "tip").text):
            assert '<img src=x onerror="alert(1)">\ufffd\ufffd</script><script>alert(2)</script>' in words
        assert browser.find_elements(By.TAG_NAME, "img") == [] and errors(browser) == []


def test_without_scripts_the_map_is_whole_and_has_no_dead_buttons(browser, pages):
    svg = opened(browser, pages[0])
    squares = [p.get_attribute("d") for p in svg.find_elements(By.CSS_SELECTOR, "g[data-region] path")]
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        load(browser, pages[0])
        svg = browser.find_element(By.CSS_SELECTOR, "svg.map")
        assert svg.is_displayed() and browser.find_elements(By.CLASS_NAME, "zoombar") == []
        assert squares == [p.get_attribute("d") for p in svg.find_elements(By.CSS_SELECTOR, "g[data-region] path")]
        assert sum(d.count("M") for d in squares) == 155
        assert svg.find_element(By.TAG_NAME, "title").get_attribute("textContent").startswith("Occupancy")
        assert not browser.find_element(By.CSS_SELECTOR, "#map .js").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_zoomed_map_fits_a_narrow_window(browser, pages):
    metrics = {"width": 380, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        svg = opened(browser, pages[0])
        for _ in range(4):
            browser.execute_script("arguments[0].click()", buttons(browser)[PLUS])
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 380
        assert svg.size["width"] <= 380 and svg.size["height"] > 300
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_the_layer_of_the_zoom_has_the_colours_of_the_picture(browser, pages):
    svg = opened(browser, pages[1])
    at(browser, svg, 4, 18)
    both = [svg.find_element(By.CSS_SELECTOR, s) for s in (".deep .paper", ".deep .h8")]
    try:
        for word in ("light", "dark"):
            theme(browser, word)
            tone = [e.value_of_css_property("fill").split("(")[1].split(",")[0] for e in both]
            assert (int(tone[0]) > int(tone[1])) == (word == "light")
    finally:
        theme(browser, "")


def test_packed_pages_are_the_profiles_and_leave_the_rest_as_it_was():
    map_ = zoomkit.occupancy()
    packed = report_depth.packed(map_)
    for region, told in zip(map_["regions"], zoomkit.unpacked(packed["depth"])):
        assert [list(p) for p in zip(told["bytes"], told["sites"], told["grains"])] == region["pages"]
    assert all("pages" not in region for region in packed["regions"])
    assert [r["blocks"] for r in packed["regions"]] == [r["blocks"] for r in map_["regions"]]
    assert report_depth.packed(packed) == packed and report_depth.words({"regions": []}) == ""


def test_one_page_that_can_be_zoomed_into_is_one_page():
    depth = {"pages": 1, "pages_with_grains": 1, "pages_in_all": 1}
    assert report_depth.words({"depth": depth, "page_bytes": 4096}).startswith("Zoomed in: 1 page of 4.1 KB, ")


def test_packed_pages_have_a_bound_and_what_is_left_out_is_said(monkeypatch):
    map_ = zoomkit.occupancy(800)
    whole = report_depth.packed(map_)
    assert "of each page the pieces" in report_depth.words(whole)
    monkeypatch.setattr(report_depth, "PACKED_BYTES_MAX", len(whole["depth"]["packed"]) // 2)
    some = report_depth.packed(map_)
    count = some["depth"]["pages_with_grains"]
    assert len(some["depth"]["packed"]) <= report_depth.PACKED_BYTES_MAX and 800 < count < 3220
    assert some["depth"]["pages"] == 3220 and f"first {count:,}, as far as" in report_depth.words(some)
    monkeypatch.setattr(report_depth, "PACKED_BYTES_MAX", 1000)
    least = report_depth.packed(map_)
    assert least["depth"]["pages"] == 0 and "there was no room for 3,220 more" in report_depth.words(least)
