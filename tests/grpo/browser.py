"""Controls a headless Chromium (selenium), for tests of web pages and for screenshots."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, TypeVar

from selenium import webdriver
from selenium.common.exceptions import NoAlertPresentException, NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from grpo.base.errors import PlainError

CHROMIUM: Final = Path("/usr/bin/chromium")
CHROMEDRIVER: Final = Path("/usr/bin/chromedriver")
_FLAGS: Final = (
    "--headless=new",
    "--no-sandbox",  # Which root has none of.
    "--disable-gpu",
    "--disable-dev-shm-usage",  # A container's is 64 MB.
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
)
_SECONDS: Final = 600.0

_Found = TypeVar("_Found")


class BrowserError(PlainError, RuntimeError):
    """There is no browser, or a page does not show what it should; the message says what it shows."""


def missing() -> str:
    """Return why no browser can be started, with the remedy; empty when one can."""
    absent = [str(path) for path in (CHROMIUM, CHROMEDRIVER) if not path.is_file()]
    if not absent:
        return ""
    return f"no {' and no '.join(absent)}: `sudo apt-get install chromium chromium-driver`"


class Page:
    """The one tab of a browser."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self._driver = driver

    def go(self, address: str) -> None:
        """Open an address."""
        self._driver.get(address)

    @property
    def address(self) -> str:
        """Where it is."""
        return str(self._driver.current_url)

    @property
    def text(self) -> str:
        """What can be read on it now."""
        return self._driver.find_element(By.TAG_NAME, "body").text

    def wait_for(self, *texts: str) -> str:
        """Return the page's text once all of these are in it; raises BrowserError with what it shows instead."""

        def whole() -> str | None:
            shown = self.text
            return shown if all(text in shown for text in texts) else None

        return self.until(whole, f"show {' and '.join(map(repr, texts))}")

    def click(self, text: str, *, kind: str = "*") -> None:
        """Click the first element (of this tag) that can be seen with exactly this text; raises BrowserError when there is none."""
        quoted = f'"{text}"' if '"' not in text else f"'{text}'"

        def clicked() -> bool:
            found = self._driver.find_elements(By.XPATH, f"//{kind}[normalize-space(.)={quoted} or @aria-label={quoted}]")
            # The innermost has the handler of all around it.
            shown = [element for element in found if element.is_displayed()]
            if shown:
                self._driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", shown[-1])
                shown[-1].click()
            return bool(shown)

        self.until(clicked, f"have {text!r} to click")

    def drag(self, label: str, target: str) -> None:
        """Drag the element with this label onto another."""
        one, other = (self.find(f"[aria-label='{name}']")[0] for name in (label, target))
        ActionChains(self._driver).drag_and_drop(one, other).perform()

    def answer(self, *, is_yes: bool) -> None:
        """Answer the question that the page asks in a dialog of the browser."""
        question = self.until(lambda: self._driver.switch_to.alert, "ask a question")
        if is_yes:
            question.accept()
        else:
            question.dismiss()

    def find(self, css: str) -> list[WebElement]:
        """Return the elements of a CSS selector, of which there is at least one."""
        return self.until(lambda: self._driver.find_elements(By.CSS_SELECTOR, css), f"have an element {css}")

    def texts(self, css: str) -> list[str]:
        """Return what the elements of a CSS selector show, from the top of the page to its end."""

        def read() -> list[str]:
            found = [element for element in self._driver.find_elements(By.CSS_SELECTOR, css) if element.is_displayed()]
            return [element.text for element in sorted(found, key=lambda element: (element.rect["y"], element.rect["x"]))]

        return self.until(read, f"have an element {css}")

    def run(self, script: str, *arguments: object) -> object:
        """Return what a script returns in the page."""
        result: object = self._driver.execute_script(script, *arguments)
        return result

    def in_every_page(self, script: str) -> None:
        """Run a script in each page that is opened from now on, before the page's own."""
        self._driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": script})

    def show_on(self, *, width: int, height: int, is_dark: bool = False, is_phone: bool = False) -> None:
        """Emulate a screen of this size, in light or dark mode, from now on."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_phone}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def until(self, look: Callable[[], _Found | None], what: str) -> _Found:
        """Return what `look` finds, once it finds something; raises BrowserError, saying that the page does not do `what`."""
        until = time.monotonic() + _SECONDS
        while True:
            try:
                if found := look():
                    return found
            except (NoAlertPresentException, NoSuchElementException, StaleElementReferenceException):
                pass  # The page is rerendering.
            if time.monotonic() > until:
                raise BrowserError(f"{self.address} does not {what} within {_SECONDS:.0f} s; it shows:\n{self.text[:3000]}")
            time.sleep(0.1)


@contextmanager
def browser() -> Iterator[Page]:
    """Give an empty page of a browser that knows nothing of any other; raises BrowserError when there is none on this machine."""
    if why := missing():
        raise BrowserError(why)
    with TemporaryDirectory(prefix="chromium-") as profile:
        options = Options()
        options.binary_location = str(CHROMIUM)
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        # Named, or selenium looks for a driver on the network.
        driver = webdriver.Chrome(options=options, service=Service(str(CHROMEDRIVER)))
        try:
            driver.set_page_load_timeout(_SECONDS)
            yield Page(driver)
        finally:
            driver.quit()
