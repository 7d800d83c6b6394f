"""Links of README and docs lead somewhere; MkDocs checks those inside the site once more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_FENCE = re.compile(r"^```.*?^```[ \t]*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that headings get, on GitHub and in the site."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for target in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        lost = not file.exists() or (anchor and anchor not in anchors_of(file))
        broken += [target] if lost else []
    return broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


def test_damage_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# What is inside\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[a](other.md#what-is-inside) [b](other.md#outside) [c](missing.md) ![d](missing.png)\n"
        "```text\n[e](missing.md)\n```\n"
    )
    assert broken_links(page) == ["other.md#outside", "missing.md", "missing.png"]


def test_targets_of_make_exist() -> None:
    """README and docs name targets of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target
        for page in PAGES
        for target in re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)\b", _code(page))
        if target
    }
    assert named <= targets


def _code(page: Path) -> str:
    """Return what stands in backticks or in a block."""
    text = page.read_text(encoding="utf-8")
    return "\n".join([*re.findall(r"`([^`\n]+)`", text), *_FENCE.findall(text)])
