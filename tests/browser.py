"""A real browser for tests: headless Chromium, driven through chromedriver by selenium.

Without one tests skip and say what is missing; where ``XGEMM_TEST_BROWSER`` is set, as CI does,
they fail.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--disable-dev-shm-usage",
)  # fmt: skip
WIDTHS = (400, 1400)
CHECKS = (Path(__file__).parent / "data" / "page_checks.js").read_text(encoding="utf-8")


def missing() -> str:
    """What a test in a browser lacks here, in words; empty where it has all."""
    if importlib.util.find_spec("selenium") is None:
        return "needs selenium: pip install selenium"
    if not any(map(shutil.which, BROWSERS)):
        return "needs Chromium: apt-get install chromium"
    if shutil.which("chromedriver") is None:
        return "needs chromedriver: apt-get install chromium-driver"
    return ""


@contextmanager
def start() -> Iterator[Any]:
    """A driver with a profile of its own; skips the test, or fails it, where there is none."""
    if lack := missing():
        if os.environ.get("XGEMM_TEST_BROWSER"):
            pytest.fail(f"XGEMM_TEST_BROWSER is set, and this machine {lack}")
        pytest.skip(lack)
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = next(filter(None, map(shutil.which, BROWSERS)))
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in FLAGS:
        options.add_argument(flag)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options.add_argument(f"--user-data-dir={profile}")
        driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
        driver.set_page_load_timeout(60)
        driver.set_script_timeout(60)
        try:
            yield driver
        finally:
            driver.quit()


def resize(driver: Any, width: int, height: int = 900) -> None:
    """Give the page this many CSS pixels, also fewer than a window can be narrow."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def theme(driver: Any, name: str) -> None:
    """Have the page see that the user prefers "light" or "dark"."""
    features = [{"name": "prefers-color-scheme", "value": name}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def complaints(driver: Any) -> list[str]:
    """Errors of the console since the last call, and what was asked of a network."""
    told = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    asked = driver.execute_script(
        "return performance.getEntriesByType('resource').map((e) => e.name)"
    )
    return told + [name for name in asked if not name.startswith(("file:", "data:", "blob:"))]


def overflow(driver: Any) -> list[str]:
    """What is wider than the page and not inside a box that scrolls; none where all fits."""
    return driver.execute_script(f"{CHECKS}return overflow();")


def clipped(driver: Any) -> list[str]:
    """Texts of the report's charts that reach beyond their drawing."""
    return driver.execute_script(f"{CHECKS}return clipped();")


def faint(driver: Any, least: float = 4.5) -> list[str]:
    """Texts whose contrast with what lies behind them is below WCAG's for small letters."""
    return driver.execute_script(f"{CHECKS}return faint(arguments[0]);", least)
