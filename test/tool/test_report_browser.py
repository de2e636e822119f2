# SPDX-License-Identifier: MIT
"""test_report_browser - the pages in headless Chromium: nothing is fetched, nothing fails, everything answers, and without scripts all is there."""

import os
import shutil

import pytest
import reportkit
from browserkit import (  # noqa: F401 - the fixture is found by its name
    ARTEFACTS,
    ActionChains,
    By,
    browser,
    errors,
    load,
    requests,
    screenshot,
    theme,
)
from toolkit import quire

import report.page as report_page

SECTIONS = "verdict cost live sizes rss map flame sites limits machine rawdata".split()


def lightness(browser, selector):
    """0 black to 1 white, of an element's background."""
    element = browser.find_element(By.CSS_SELECTOR, selector)
    words = element.value_of_css_property("background-color").split("(")[1].rstrip(")").split(",")
    return sum(float(w) for w in words[:3]) / 3 / 255


def test_a_page_asks_for_nothing_and_complains_of_nothing(browser):
    load(browser, reportkit.trace_page())
    asked = [u for u in requests(browser) if not u.startswith(("file://", "data:"))]
    assert asked == []
    assert errors(browser) == []
    assert browser.execute_script("return document.documentElement.classList.contains('has-js')")


def test_names_with_markup_run_nothing(browser):
    load(browser, reportkit.trace_page())
    assert reportkit.HOSTILE[0] in browser.find_element(By.TAG_NAME, "h1").text
    assert browser.find_elements(By.TAG_NAME, "img") == []


def test_the_table_of_sites_sorts_and_filters(browser):
    load(browser, reportkit.trace_page())
    table = browser.find_element(By.ID, "site-table")

    def column():
        rows = table.find_elements(By.CSS_SELECTOR, "tbody tr")
        keys = [r.find_elements(By.TAG_NAME, "td")[4].get_attribute("data-key") for r in rows]
        return [float(k) for k in keys]

    button = table.find_elements(By.CSS_SELECTOR, "th button")[4]
    button.click()
    assert len(set(column())) > 1 and column() == sorted(column(), reverse=True)
    button.click()
    assert column() == sorted(column())
    browser.find_element(By.CSS_SELECTOR, "input[data-filters=site-table]").send_keys("MAKE_box")
    shown = [r for r in table.find_elements(By.CSS_SELECTOR, "tbody tr") if r.is_displayed()]
    assert [("make_box" in r.text) for r in shown] == [True]
    assert browser.find_element(By.ID, "site-table-count").text.startswith("1 of ")


def test_details_open_and_close(browser):
    load(browser, reportkit.trace_page())
    details = browser.find_element(By.ID, "flame-count")
    picture = details.find_element(By.CSS_SELECTOR, "svg.flame")
    assert not picture.is_displayed()
    details.find_element(By.TAG_NAME, "summary").click()
    assert picture.is_displayed()
    stack = browser.find_element(By.CSS_SELECTOR, "#site-table details")
    stack.find_element(By.TAG_NAME, "summary").click()
    assert "main" in stack.find_element(By.CSS_SELECTOR, "ol").text


def test_the_flame_graph_zooms_in_and_out_again(browser):
    load(browser, reportkit.trace_page())
    browser.find_element(By.CSS_SELECTOR, "#flame-count summary").click()
    flame = browser.find_element(By.CSS_SELECTOR, "#flame-count svg.flame")
    boxes = flame.find_elements(By.TAG_NAME, "g")
    target = next(b for b in boxes if "grow" in b.get_attribute("data-name"))
    rect = target.find_element(By.TAG_NAME, "rect")
    before = float(rect.get_attribute("width"))
    browser.execute_script("arguments[0].dispatchEvent(new MouseEvent('click',{bubbles:true}))", rect)
    assert float(rect.get_attribute("width")) > 1000 > 900 > before
    assert "grow" in target.find_element(By.TAG_NAME, "text").text
    hidden = [b for b in boxes if b.value_of_css_property("display") == "none"]
    assert any("make_box" in b.get_attribute("data-name") for b in hidden)
    browser.find_element(By.CSS_SELECTOR, "#flame-count button").click()
    assert abs(float(rect.get_attribute("width")) - before) < 0.1


def test_the_pointer_is_told_what_it_is_on(browser):
    load(browser, reportkit.trace_page())
    tip = browser.find_element(By.ID, "tip")
    flame = browser.find_element(By.CSS_SELECTOR, "#flame-live svg.flame")
    browser.execute_script("arguments[0].scrollIntoView({block:'center'})", flame)
    first = flame.find_elements(By.CSS_SELECTOR, "g rect")[1]
    ActionChains(browser).move_to_element(first).perform()
    assert tip.is_displayed() and "%" in tip.text
    square = browser.find_element(By.CSS_SELECTOR, "svg.map g[data-region] path:not(.void)")
    browser.execute_script("arguments[0].scrollIntoView({block:'center'})", square)
    box = browser.execute_script(
        "var r=document.querySelector('svg.map g[data-region]').getBoundingClientRect();return [r.left,r.top]"
    )
    event = (
        "var e=new MouseEvent('mousemove',{bubbles:true,clientX:arguments[0]+4,clientY:arguments[1]+4});"
        "document.querySelector('svg.map').dispatchEvent(e)"
    )
    browser.execute_script(event, *box)
    assert "% live" in tip.text


@pytest.mark.parametrize("word", ["light", "dark"])
def test_a_page_follows_the_readers_colours(browser, word):
    theme(browser, word)
    try:
        load(browser, reportkit.trace_page())
        for selector in ("body", ".tile"):
            assert (lightness(browser, selector) > 0.8) == (word == "light")
        text = browser.find_element(By.CSS_SELECTOR, "svg.plot text")
        fill = text.value_of_css_property("fill").split("(")[1].rstrip(")").split(",")
        assert (sum(float(w) for w in fill[:3]) / 3 > 128) == (word == "dark")
        assert len(screenshot(browser, f"report-{word}.png")) > 50_000
    finally:
        theme(browser, "")


@pytest.mark.parametrize("width", [360, 768])
def test_a_narrow_window_needs_no_sideways_scrolling(browser, width):
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        load(browser, reportkit.trace_page())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        screenshot(browser, f"report-{width}.png")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_without_scripts_every_section_and_figure_is_there(browser):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        load(browser, reportkit.trace_page())
        for name in SECTIONS:
            assert browser.find_element(By.ID, name).is_displayed(), name
        assert not browser.find_element(By.CSS_SELECTOR, "input[type=search]").is_displayed()
        for picture in browser.find_elements(By.CSS_SELECTOR, "#cost svg, #live svg, #flame-live svg"):
            assert picture.is_displayed() and picture.size["height"] > 40
        browser.find_element(By.CSS_SELECTOR, "#flame-count summary").click()
        assert browser.find_element(By.CSS_SELECTOR, "#flame-count svg").is_displayed()
        assert "make_box<int>" in browser.find_element(By.ID, "site-table").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_the_page_of_a_try_shows_its_verdict(browser):
    _, document = reportkit.tried()
    load(browser, document["report"])
    assert errors(browser) == []
    verdict = browser.find_element(By.CSS_SELECTOR, ".verdict b")
    assert verdict.text == document["verdict"]["word"]
    if os.environ.get("QUIRE_KEEP_PAGES"):
        shutil.copy(document["report"], ARTEFACTS)
    screenshot(browser, "try-light.png")


def test_the_page_of_a_difference_answers(browser):
    page = reportkit.folder() / "difference.html"
    done = quire(reportkit.folder(), "report", reportkit.trace(), reportkit.trace(), "-o", page)
    assert done.returncode == 0, done.stderr
    load(browser, page)
    assert errors(browser) == [] and len(requests(browser)) <= 2
    table = browser.find_element(By.ID, "figure-table")
    table.find_elements(By.CSS_SELECTOR, "th button")[1].click()
    keys = [c.get_attribute("data-key") for c in table.find_elements(By.CSS_SELECTOR, "td:nth-child(2)")]
    assert [float(k) for k in keys] == sorted((float(k) for k in keys), reverse=True)


def test_a_search_finds_folded_sites_and_opens_them(browser):
    document = reportkit.raw(reportkit.trace_page())
    document["profile"] = None  # its pictures are of no interest here
    document["findings"]["allocators"] = []
    small = {**document["findings"]["sites"][-1], "allocations": 1, "class": "leave alone"}
    small.pop("saving_cpu_s", None)
    document["findings"]["sites"] += [{**small, "function": f"rare_{i}"} for i in range(5)]
    page = reportkit.folder() / "folded.html"
    page.write_text(report_page.page(document), encoding="utf-8")
    load(browser, page)
    assert errors(browser) == []
    fold = browser.find_element(By.ID, "few-sites")
    assert not fold.find_element(By.TAG_NAME, "table").is_displayed()
    field = browser.find_element(By.CSS_SELECTOR, "input[data-filters=site-table]")
    field.send_keys("rare_3")
    shown = [r.text for r in fold.find_elements(By.CSS_SELECTOR, "tbody tr") if r.is_displayed()]
    assert len(shown) == 1 and "rare_3" in shown[0]
    field.send_keys("nowhere")
    assert not fold.find_element(By.TAG_NAME, "table").is_displayed()
