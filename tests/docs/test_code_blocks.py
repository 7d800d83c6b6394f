"""Every code block of README and docs runs as it is written, and prints what the page says.

The Python blocks of a page share one namespace and one folder. Shell blocks hold commands of ``dmliv``, which
run in that folder as well. A ``text`` block right after a Python block is what it prints. A TOML block with a
title is a file of that name. A block that cannot run says so to the reader, by "not run here" in its title.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from dmliv.cli import app

ROOT = Path(__file__).parents[2]
NOT_RUN = "not run here"
LANGUAGES = ("python", "sh", "text", "toml")
# Networks differ a little between processors; a page that says something else differs by more.
RELATIVE, ABSOLUTE = 0.2, 0.05
# Too demanding to be installed beside the package; `make test-interop` runs their page.
ELSEWHERE = ("dowhy", "econml")

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
_TITLE = re.compile(r'title="([^"]+)"')
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    language: str
    title: str
    code: str
    line: int
    follows: bool

    @property
    def runs(self) -> bool:
        return self.language in ("python", "sh") and NOT_RUN not in self.title


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    blocks = []
    end = 0
    for match in _FENCE.finditer(text):
        language, _, title = match["info"].strip().partition(" ")
        line = text.count("\n", 0, match.start("code"))
        # Right after another block, with nothing said in between.
        follows = not text[end : match.start()].strip()
        blocks.append(Block(language, title, match["code"], line, follows))
        end = match.end()
    return blocks


def commands_of(code: str) -> list[list[str]]:
    """Split a shell block into commands, with continued lines joined and comments left out."""
    commands = (shlex.split(line, comments=True) for line in code.replace("\\\n", " ").splitlines())
    return [command for command in commands if command]


PAGES = {
    page.relative_to(ROOT).as_posix(): blocks_of(page)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
RUNNING = [name for name, blocks in PAGES.items() if any(block.runs for block in blocks)]


def write_reader_tables(folder: Path) -> None:
    """Write the tables that pages take for granted, because they are the reader's own."""
    rng = np.random.default_rng(100)
    n = 240
    time, fuel, hidden = rng.uniform(0, 10, n), rng.standard_normal(n), rng.standard_normal(n)
    kind = rng.choice(["day", "night", "weekend"], n)
    price = 20.0 + 2.0 * fuel + 0.3 * time + hidden
    sales = 50.0 - 1.5 * price + 2.0 * (kind == "night") + 3.0 * hidden + rng.standard_normal(n)
    table = pd.DataFrame({"sales": sales, "price": price, "fuel": fuel, "time": time, "type": kind})
    table.to_csv(folder / "sales.csv", index=False)
    table[["time", "type"]].tail(20).to_csv(folder / "new.csv", index=False)


def regression_has_the_wrong_sign(names: dict[str, Any], folder: Path) -> None:
    del folder
    assert names["naive"].coef_[-1] > 0.0
    assert np.mean(names["effect"]) == pytest.approx(np.mean(names["truth"]), abs=0.1)


def best_doses_are_found(names: dict[str, Any], folder: Path) -> None:
    del folder
    np.testing.assert_allclose(names["policy"].predict(names["new"]), [2.0, 3.0], atol=0.3)


def served_actions_are_those_of_the_policy(names: dict[str, Any], folder: Path) -> None:
    assert (folder / "sales.onnx").exists()
    expected = names["policy"].predict(names["pd"].DataFrame(names["rows"]))
    assert names["action"].tolist() == expected.tolist()


def agrees(printed: str, shown: str) -> bool:
    """Say whether two texts have the same words, and numbers that are close."""
    if _NUMBER.sub("#", printed).split() != _NUMBER.sub("#", shown).split():
        return False
    pairs = zip(_NUMBER.findall(printed), _NUMBER.findall(shown), strict=True)
    return all(
        float(ours) == pytest.approx(float(theirs), rel=RELATIVE, abs=ABSOLUTE) for ours, theirs in pairs
    )


FACTS: dict[str, Callable[[dict[str, Any], Path], None]] = {
    "docs/tutorial.md": regression_has_the_wrong_sign,
    "docs/what-users-asked.md": best_doses_are_found,
    "docs/how-to/serving.md": served_actions_are_those_of_the_policy,
}


def run_commands(code: str, name: str) -> None:
    for command in commands_of(code):
        assert command[0] == "dmliv", f"{name}: {command} cannot run; say {NOT_RUN!r} in its title"
        result = CliRunner().invoke(app, command[1:])
        assert result.exit_code == 0, f"{name}: {' '.join(command)}\n{result.output}"


@pytest.mark.parametrize("name", RUNNING)
def test_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = "".join(block.code for block in PAGES[name] if block.runs)
    for package in ELSEWHERE:
        if re.search(rf"^(from|import) {package}\b", code, re.MULTILINE) and not importlib.util.find_spec(
            package
        ):
            pytest.skip(f"needs {package}: make test-interop runs this page")
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    write_reader_tables(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block, following in zip(PAGES[name], [*PAGES[name][1:], None], strict=True):
        if block.language == "toml" and (file := _TITLE.search(block.title)):
            (tmp_path / file[1]).write_text(block.code)
        elif block.runs and block.language == "python":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                # Empty lines before the code make tracebacks name the line of the page.
                exec(compile("\n" * block.line + block.code, name, "exec"), names)
            if following is not None and following.language == "text" and following.follows:
                assert agrees(printed.getvalue(), following.code), f"{name}: prints\n{printed.getvalue()}"
        elif block.runs:
            run_commands(block.code, name)
    if name in FACTS:
        FACTS[name](names, tmp_path)


@pytest.mark.parametrize("name", PAGES)
def test_languages_are_those_that_are_looked_at(name: str) -> None:
    """A misspelt language would keep a block from being run."""
    assert {block.language for block in PAGES[name]} <= set(LANGUAGES)


@pytest.mark.parametrize(
    ("printed", "shown", "same"),
    [
        ("gain -0.41\n", "gain -0.40\n", True),
        ("gain  +0.4\n", "gain -0.4\n", False),
        ("gain 1.0\n", "gain 1.0 euro\n", False),
        ("gain 1.0\n", "gain 2.0\n", False),
    ],
)
def test_printed_text_is_compared(printed: str, shown: str, same: bool) -> None:
    assert agrees(printed, shown) is same


def test_facts_are_about_pages_that_run() -> None:
    assert set(FACTS) <= set(RUNNING)
