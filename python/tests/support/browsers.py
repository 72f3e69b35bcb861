"""A headless Chromium for tests of web pages: the one that `python/set-up-chromium` installs."""

import contextlib
import os
import pathlib
import sys
from collections.abc import Iterator

from playwright.sync_api import Page, expect, sync_playwright
from watched_process import HANG_TIMEOUT

#: The folder of the installed browser.
FOLDER = pathlib.Path(sys.prefix) / "chromium"


@contextlib.contextmanager
def open_page() -> Iterator[Page]:
    """Opens an empty page in a browser of its own. The end closes the browser, and reports failed scripts."""
    environment: dict[str, str | float | bool] = {**os.environ}
    program = os.environ.get("STEPFAST_TEST_CHROMIUM")
    if not program:
        program = str(FOLDER / "chromium")
        environment |= {"LD_LIBRARY_PATH": str(FOLDER / "lib"), "FONTCONFIG_PATH": str(FOLDER)}
    expect.set_options(timeout=HANG_TIMEOUT * 1000)
    with sync_playwright() as playwright:
        # the sandbox needs rights that a container may not have; the pages are the project's own
        browser = playwright.chromium.launch(executable_path=program, env=environment, chromium_sandbox=False)
        context = browser.new_context()
        context.set_default_timeout(HANG_TIMEOUT * 1000)
        errors: list[str] = []
        context.on("weberror", lambda web_error: errors.append(str(web_error.error)))
        yield context.new_page()
        browser.close()
    assert not errors, errors
