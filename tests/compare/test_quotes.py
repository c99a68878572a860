"""What a page quotes as a program's output is that output."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
QUOTE = re.compile(r"<!-- (docs/results/\S+) -->\n```text\n(.*?)\n```", re.DOTALL)


def test_quoted_output_is_the_output():
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    quotes = [quote for page in pages for quote in QUOTE.findall(page)]
    assert len(quotes) >= 9
    for path, text in quotes:
        assert text == (ROOT / path).read_text(encoding="utf-8").rstrip(), path
