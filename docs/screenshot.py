"""docs/page.png, the picture of the page in the README: the demo's collection, searched in a real browser.

    python docs/screenshot.py                       # docs/page.png; needs chromium, its driver, and selenium
    python docs/screenshot.py --views FOLDER        # and all views: light, dark, on a phone, tree of codes

The pictures on it are Twemoji (CC BY 4.0), from the package that the demo uses.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from PIL import Image

PICTURE = Path(__file__).parent / "page.png"
QUERY = "#/search?q=a+cat+face"
WIDE, PHONE = (1240, 800, False), (390, 844, True)
VIEWS = {
    "home": ("", "#tasters-list button", WIDE, "light"),
    "search": (QUERY, ".card", WIDE, "light"),
    "dark": (QUERY, ".card", WIDE, "dark"),
    "tree": ("#/codes/0", ".tile", WIDE, "light"),
    "phone": (QUERY, ".card", PHONE, "light"),
    "phone-dark": ("#/codes", ".tile", PHONE, "dark"),
}
SETTLED = """
const seen = (image) => image.offsetParent && image.getBoundingClientRect().top < innerHeight;
return document.querySelector(arguments[0]) && !document.querySelector("[aria-busy]")
  && [...document.images].filter(seen).every((image) => image.complete)
  && document.getAnimations().every((one) => one.playState === "finished");
"""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a server for the demo's collection."""
    from genius.cli.demo import collection, emoji_folder
    from genius.engine import Engine

    with Engine.create(folder) as engine:
        engine.add(collection(emoji_folder()))
        engine.compact()
    program = [sys.executable, "-c", "from genius.cli import main; main()"]
    command = [*program, "serve", "--in", str(folder), "--port", "0", "--quiet"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        (url,) = re.findall(r"http://127\.0\.0\.1:\d+", process.stderr.readline())
        while not _ready(url):
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def _ready(url: str) -> bool:
    try:
        return bool(urlopen(f"{url}/readyz").status == 200)
    except HTTPError as loading:
        loading.close()
        return False


@contextmanager
def browsing() -> Iterator[Any]:
    """A browser without a window."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def look(driver: Any, url: str, view: str, scale: float) -> Image.Image:
    """What a view looks like."""
    where, expected, (width, height, mobile), theme = VIEWS[view]
    metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.get(url)
    driver.execute_script("localStorage.setItem('genius-theme', arguments[0])", theme)
    driver.get("about:blank")
    driver.get(url + "/" + where)
    end = time.monotonic() + 60
    while not driver.execute_script(SETTLED, expected):
        if time.monotonic() > end:
            raise SystemExit(f"the view {view} does not come to rest")
        time.sleep(0.1)
    return Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--views", type=Path, help="folder for pictures of all views")
    parser.add_argument("--url", help="a server that runs already")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        nullcontext(given.url) if given.url else serving(Path(folder) / "index") as url,
        browsing() as driver,
    ):
        if given.views:
            given.views.mkdir(parents=True, exist_ok=True)
            for view in VIEWS:
                look(driver, url, view, 1).save(given.views / f"{view}.png")
        sharp = look(driver, url, "search", 1.5)
    sharp.quantize(256, dither=Image.Dither.NONE).save(PICTURE, optimize=True)
    print(f"{os.path.relpath(PICTURE)}: {PICTURE.stat().st_size // 1024} KB")


if __name__ == "__main__":
    main()
