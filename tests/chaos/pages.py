"""The HTML report of a run whose every name is an attack, opened in a real browser where there is one."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from chaos.ledger import Ledger, require
from dladmm.report import read_report, write_page
from report_runs import history, make_run

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
]

PAYLOADS = [
    "<script>window.broken=1</script>",
    "</script><script>window.broken=1</script>",
    "<img src=x onerror=window.broken=1>",
    "<svg onload=window.broken=1>",
    "\"><svg/onload=window.broken=1>",
    "' onmouseover='window.broken=1",
    "\" autofocus onfocus=\"window.broken=1",
    "javascript:window.broken=1",
    "<a href=javascript:window.broken=1>x</a>",
    "<iframe srcdoc='<script>parent.broken=1</script>'></iframe>",
    "<style>*{background:url(http://127.0.0.1:9/x)}</style>",
    "<base href=http://127.0.0.1:9/>",
    "<meta http-equiv=refresh content='0;url=http://127.0.0.1:9/'>",
    "<!--", "-->", "]]>", "<![CDATA[", "</title>", "</style>", "</table>",
    "{{constructor.constructor('window.broken=1')()}}", "${window.broken=1}",
    "&lt;script&gt;window.broken=1&lt;/script&gt;",
    "\u2028window.broken=1\u2029", "\u202egnp.exe", "\x00<script>window.broken=1</script>",
    "<script\x0b>window.broken=1</script>", "<ſcript>window.broken=1</ſcript>",
    "__proto__", "constructor", "%3Cscript%3Ewindow.broken=1%3C/script%3E",
]  # fmt: skip


def find_browser() -> str | None:
    named = os.environ.get("DLADMM_CHROMIUM")
    return named or next(filter(None, map(shutil.which, BROWSERS)), None)


def evil_folder(folder: Path, payload: str) -> Path:
    """A comparison in which data set, method, label, column, setting, status and machine all say the payload."""
    name = payload.replace("/", "_").replace("\0", "_")[:80]
    columns = history() | {payload: [1] * 12}
    settings = {payload: payload, "method": payload, "dataset": payload, "seed": payload, "target": payload}
    for number in range(2):
        run = make_run(
            folder / name / str(number), columns, status=payload, machine={payload: payload}, **settings,
            hidden=[payload, number],
        )  # fmt: skip
        (run / "certificate.txt").write_text(f"{payload}\n  {payload}\n", encoding="utf-8")
    return folder / name


def run(ledger: Ledger, count: int, seed: int) -> None:
    """Every count-th payload; without a browser the page's markup alone is judged, and the notes say so."""
    program = find_browser()
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    ledger.notes["in a browser"] = program is not None
    with tempfile.TemporaryDirectory() as name:
        pages = {p: write_page(read_report(evil_folder(Path(name), p)), Path(name) / f"{i}.html")
                 for i, p in enumerate(PAYLOADS[::count])}  # fmt: skip
        for payload, path in pages.items():
            with ledger.attempt(f"markup of {payload!r}"):
                judge_markup(path.read_text(encoding="utf-8"))
        if program is None:
            return
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=program, args=SWITCHES)
            for payload, path in pages.items():
                with ledger.attempt(f"page of {payload!r}"):
                    judge_page(browser, path)
            browser.close()


def judge_markup(text: str) -> None:
    for tag in ("<script", "</script", "<style", "</style"):
        require(text.count(tag) == (2 if "script" in tag else 1), f"{text.count(tag)} times {tag}")
    for tag in ("<img", "<iframe", "<base", "<svg onload", "<svg/onload"):
        require(tag not in text, f"{tag} in the page")


def judge_page(browser: object, path: Path) -> None:
    """Open it, open and press everything on it: nothing runs, nothing is fetched, nothing is complained of."""
    context = browser.new_context()  # type: ignore[attr-defined]
    try:
        page = context.new_page()
        page.set_default_timeout(20_000)
        fetched: list[str] = []
        troubles: list[str] = []
        page.on("request", lambda request: fetched.append(request.url))
        page.on("console", lambda message: troubles.append(message.text))
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: (troubles.append("a dialog"), dialog.dismiss()))
        page.goto(path.as_uri())
        page.evaluate("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        page.evaluate(
            "document.querySelectorAll('button, a, summary, svg').forEach((e) => {"
            " for (const kind of ['mouseover', 'focus', 'click'])"
            " e.dispatchEvent(new Event(kind, {bubbles: true})); })"
        )
        require(page.evaluate("window.broken") is None, "a script ran")
        require(page.evaluate("Object.prototype.polluted") is None, "a prototype was changed")
        require(fetched == [path.as_uri()], f"fetched {fetched[1:]}")
        require(not troubles, f"complaints: {troubles[:3]}")
        require(page.locator("img, iframe, base, object, embed").count() == 0, "an element got in")
        require(page.locator("main h2, main h1, h1").count() > 0, "the page is empty")
    finally:
        context.close()
