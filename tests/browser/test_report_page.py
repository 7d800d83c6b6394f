"""The HTML report in a browser: it loads alone, its panel tells what the model says, it fits a phone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from dmliv import DMLIV, TwoStageLeastSquares
from dmliv.learners import neural
from dmliv.report import write_report
from dmliv.report.contents import ReportContents
from dmliv.report.gather import gather
from dmliv.report.page import render

pytestmark = pytest.mark.browser

LAPTOP, PHONE = (1280, 800), (390, 844)
# What a stranger's table may hold: none of it may run, and all of it must be shown.
TIME = "time <script>window.hacked = 1</script>"
LEVELS = ("family", "</script><img src=x onerror='window.hacked = 1'>", 'a "student" & $x$')


class Page(NamedTuple):
    file: Path
    estimator: Any
    contents: ReportContents


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    rng = np.random.default_rng(100)
    n = 400
    time, fuel, hidden = rng.uniform(0, 10, n), rng.standard_normal(n), rng.standard_normal(n)
    kind = rng.integers(3, size=n)
    price = 20.0 + 3.0 * fuel + 2.0 * hidden
    best = np.array([17.0, 25.0, 21.0])[kind] + np.sin(time)
    profit = 100.0 - 0.3 * (price - best) ** 2 + 4.0 * hidden
    X = pd.DataFrame({TIME: time, "kind": np.array(LEVELS)[kind], "seats": rng.integers(1, 6, n)})
    T, Z = pd.DataFrame({"price": price}), pd.DataFrame({"fuel": fuel})
    estimator = DMLIV(neural(effort="fast"), n_folds=2, random_state=0).fit(profit, T, Z=Z, X=X)
    file = tmp_path_factory.mktemp("report") / "report.html"
    contents = write_report(estimator, file, T=T, X=X, Y=profit, Z=Z, outcome_name="profit")
    return Page(file, estimator, contents)


@pytest.fixture
def window(browser: Any, page: Page) -> Any:
    browser.size(*LAPTOP)
    browser.log("browser"), browser.requests()
    browser.open(page.file)
    return browser


def set_panel(window: Any, values: dict[str, object]) -> dict[str, Any]:
    """Set controls by the names of their columns and return what the panel shows."""
    return json.loads(
        window.run(
            """
            for (const [name, value] of Object.entries(arguments[0])) {
              const label = [...document.querySelectorAll('.control label')]
                .find((each) => each.firstElementChild.textContent === name);
              const input = document.getElementById(label.getAttribute('for'));
              if (input.tagName === 'SELECT') {
                input.value = [...input.options].find((each) => each.textContent === value).value;
              } else input.value = value;
              input.dispatchEvent(new Event('input', { bubbles: true }));
            }
            const drawing = document.getElementById('curve');
            return JSON.stringify({
              curve: JSON.parse(drawing.dataset.curve), best: Number(drawing.dataset.best),
              path: drawing.querySelector('.line').getAttribute('d'),
              answer: document.getElementById('answer').textContent,
              inputs: [...document.querySelectorAll('.control input')].map((each) => Number(each.value)),
            });
            """,
            values,
        )
    )


def test_loads_alone_and_without_complaint(window: Any, page: Page) -> None:
    assert window.log("browser") == []
    assert window.requests() == [page.file.as_uri()]
    assert window.run("return [...document.images].every((each) => each.complete && each.naturalWidth > 0)")
    assert window.run("return [...document.images].every((each) => each.alt.length > 10)")


def test_names_of_a_strangers_table_are_shown_and_never_run(window: Any) -> None:
    set_panel(window, {"kind": LEVELS[1]})
    assert window.run("return window.hacked === undefined")
    assert window.run("return document.scripts.length") == 2
    assert window.run("return document.querySelectorAll('[onerror]').length") == 0
    text = window.run("return document.body.innerText")
    assert TIME in text
    assert LEVELS[1] in text


def test_panel_says_what_the_model_says(window: Any, page: Page) -> None:
    axis, panel = page.contents.sections[0].axis, page.contents.panel
    assert panel is not None
    rng = np.random.default_rng(101)
    gaps, lost = [], []
    for _ in range(12):
        chosen = {
            TIME: rng.uniform(0.5, 9.5),
            "kind": LEVELS[rng.integers(3)],
            "seats": int(rng.integers(1, 6)),
        }
        shown = set_panel(window, chosen)
        X = pd.DataFrame([chosen] * len(axis.grid))
        exact = page.estimator.predict(axis.grid, X)
        gaps.append(np.abs(np.array(shown["curve"]) - exact))
        allowed = np.where(axis.allowed, exact, -np.inf)
        assert axis.allowed[np.abs(axis.grid - shown["best"]).argmin()]
        lost.append(allowed.max() - allowed[np.abs(axis.grid - shown["best"]).argmin()])
        assert f"Recommended price: {shown['best']:.4g}," in shown["answer"]
    assert np.mean(gaps) < 0.01 * panel.error.spread
    assert np.max(gaps) < 0.1 * panel.error.spread
    assert np.mean(lost) < 0.005 * panel.error.spread


def test_at_a_node_the_panel_names_the_policys_action(window: Any, page: Page) -> None:
    axis, panel = page.contents.sections[0].axis, page.contents.panel
    assert panel is not None
    by_name = {column.name: column for column in panel.columns}
    policy = page.estimator.policy(axis.grid[axis.allowed])
    answers = set()
    for level in LEVELS:
        chosen = {TIME: float(by_name[TIME].nodes[1]), "kind": level, "seats": int(by_name["seats"].nodes[0])}
        shown = set_panel(window, chosen)
        X = pd.DataFrame([chosen])
        # Two bytes hold an outcome to a part in 65,535: the actions are as good as each other then.
        recommended = float(policy.predict(X)[0])
        values = page.estimator.predict(np.array([recommended, shown["best"]]), pd.concat([X, X]))
        assert values[0] - values[1] < 1e-3 * panel.error.spread
        assert np.max(
            np.abs(shown["curve"] - page.estimator.predict(axis.grid, pd.concat([X] * len(axis.grid))))
        ) < (1e-3 * panel.error.spread)
        answers.add(recommended)
    assert len(answers) > 1


def test_sliders_move_the_curve_and_reset_brings_it_back(window: Any) -> None:
    first = set_panel(window, {})
    moved = set_panel(window, {TIME: 1.0, "kind": LEVELS[0]})
    other = set_panel(window, {TIME: 8.0, "kind": LEVELS[1]})
    assert len({first["path"], moved["path"], other["path"]}) == 3
    assert moved["best"] != other["best"]
    window.run("document.querySelector('#panel button').click()")
    window.run("return new Promise((done) => setTimeout(done, 50))")
    assert set_panel(window, {}) == first


def test_keyboard_moves_a_slider(window: Any) -> None:
    before = set_panel(window, {})
    window.run("document.querySelector('.control input').focus()")
    window.devtools("Input.dispatchKeyEvent", {"type": "keyDown", "key": "ArrowRight", "code": "ArrowRight"})
    after = set_panel(window, {})
    assert after["inputs"][0] > before["inputs"][0]
    assert after["path"] != before["path"]


def test_every_control_has_a_label(window: Any) -> None:
    labels = "[...document.querySelectorAll('.panel input, .panel select')].map((each) => each.labels.length)"
    assert window.run(f"return {labels}") == [1, 1, 1]


@pytest.mark.parametrize("width", [320, PHONE[0], 768])
def test_narrow_screens_need_no_sideways_scrolling(window: Any, page: Page, width: int) -> None:
    window.size(width, PHONE[1], mobile=True)
    window.open(page.file)
    assert window.run("return document.documentElement.scrollWidth") <= width
    assert window.run("return document.getElementById('curve').getBoundingClientRect().width") > 0.6 * min(
        width, 400
    )


def test_print_hides_the_panel(window: Any) -> None:
    shown = "return getComputedStyle(document.getElementById('what-if')).display !== 'none'"
    assert window.run(shown)
    window.devtools("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert not window.run(shown)
    finally:
        window.devtools("Emulation.setEmulatedMedia", {"media": ""})
    assert window.pdf().startswith(b"%PDF")


def test_labels_several_action_columns_and_bands(browser: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(102)
    X = pd.DataFrame({"time": rng.uniform(size=200)})
    Z = rng.standard_normal((200, 2))
    T = pd.DataFrame(Z + 0.5 * rng.standard_normal((200, 2)), columns=["price", "advert"])
    Y = T["price"] - 2.0 * T["advert"] + X["time"]
    offer = np.where(T["price"] > 0.0, "dear", "cheap")
    choice = TwoStageLeastSquares().fit(Y, offer, Z=Z, X=X)
    several = gather(TwoStageLeastSquares().fit(Y, T, Z=Z, X=X), T=T, X=X)
    assert several.panel is not None
    low, high = (tuple(values + move for values in several.panel.values) for move in (-1.0, 1.0))
    banded = replace(several, panel=replace(several.panel, lower=low, upper=high))
    (tmp_path / "choice.html").write_text(render(gather(choice, T=offer, X=X)), encoding="utf-8")
    (tmp_path / "banded.html").write_text(render(banded), encoding="utf-8")
    browser.log("browser")

    browser.open(tmp_path / "choice.html")
    best = str(choice.policy().predict(X.median().to_frame().T)[0])
    assert f"Recommended action: {best}," in browser.run(
        "return document.getElementById('answer').textContent"
    )
    assert browser.run("return document.querySelectorAll('#curve circle').length") == 2

    browser.open(tmp_path / "banded.html")
    shown = "return Number(document.getElementById('curve').dataset.best)"
    # Price raises the outcome and advert lowers it: the best actions are the highest and the lowest allowed.
    for number, end in ((0, max), (1, min)):
        change = "const s = document.getElementById('axis'); s.value = arguments[0];"
        browser.run(change + "s.dispatchEvent(new Event('input', { bubbles: true }))", number)
        axis = several.sections[number].axis
        assert browser.run(shown) == pytest.approx(end(axis.grid[axis.allowed]))
        assert browser.run("return document.querySelectorAll('#curve path[fill-opacity]').length") == 1
    assert browser.log("browser") == []
