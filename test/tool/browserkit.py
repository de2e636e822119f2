# SPDX-License-Identifier: MIT
"""
browserkit.py - one headless Chromium for all tests of pages: what it asked for, what it complained of, what it shows.

    browser (a fixture) -> chromium(), started by the first test that wants it, ended when the tests end

Without Chromium, its driver or selenium the test is skipped, with the command that installs them.  Not here: tests.
"""

import atexit
import base64
import functools
import json
import shutil
import socket
import tempfile

import pytest
from toolkit import ROOT

webdriver = pytest.importorskip("selenium.webdriver", reason="pip install selenium")
from selenium.webdriver.chrome.options import Options  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.action_chains import ActionChains  # noqa: E402,F401
from selenium.webdriver.common.by import By  # noqa: E402,F401
from selenium.webdriver.common.keys import Keys  # noqa: E402,F401
from selenium.webdriver.support.wait import WebDriverWait  # noqa: E402,F401

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
ARTEFACTS = ROOT / "build" / "test-artefacts"
SWITCHES = """--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-background-networking
    --disable-component-update --window-size=1200,900""".split()


@functools.cache
def chromium():
    """The browser."""
    options = Options()
    options.binary_location = CHROMIUM
    folder = tempfile.mkdtemp(prefix="quire-chromium-")
    for word in [*SWITCHES, f"--user-data-dir={folder}"]:
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(service=Service(DRIVER), options=options)
    driver.set_page_load_timeout(30)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(driver.quit)
    return driver


@pytest.fixture
def browser():
    if not (CHROMIUM and DRIVER):
        pytest.skip("apt-get install chromium chromium-driver")
    try:
        socket.gethostbyname("localhost")
    except OSError:  # a bare chroot; the driver and the browser find each other by that name
        pytest.skip("localhost has no address here: echo 127.0.0.1 localhost >>/etc/hosts")
    return chromium()


def load(browser, page):
    """Opens a page as a new one, its logs empty before."""
    browser.get("about:blank")
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(f"file://{page}")


def requests(browser):
    """Addresses that were asked for since the last look."""
    found = []
    for entry in browser.get_log("performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            found.append(message["params"]["request"]["url"])
    return found


def errors(browser):
    """What the console complained about."""
    return [e["message"] for e in browser.get_log("browser") if e["level"] != "INFO"]


def theme(browser, word):
    """The colours that the page's reader prefers."""
    features = [{"name": "prefers-color-scheme", "value": word}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def screenshot(browser, name):
    """A picture of the whole page, kept for people to look at."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    size = browser.execute_cdp_cmd("Page.getLayoutMetrics", {})["cssContentSize"]
    clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 9000), "scale": 1}
    shot = {"clip": clip, "captureBeyondViewport": True}
    data = base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", shot)["data"])
    (ARTEFACTS / name).write_bytes(data)
    return data
