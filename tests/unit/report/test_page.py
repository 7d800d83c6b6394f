"""The page is one safe file, the same for the same numbers."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection

from dmliv import TwoStageLeastSquares
from dmliv.errors import InputError, NotFittedError
from dmliv.report import write_report
from dmliv.report.gather import gather
from dmliv.report.page import panel_data, render
from dmliv.report.report_figures import curve_limits, draw_curve

NASTY = (
    "</script><script>boom()</script>",
    "<img src=x onerror=boom()>",
    "' onload='boom()",
    "$a_{b$ & \x07",
    "{{ 7 * 6 }}",
)


class Reader(HTMLParser):
    """Collects tags with their attributes, and the text outside scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.open = "", ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open = tag

    def handle_data(self, data: str) -> None:
        if self.open not in ("script", "style"):
            self.text += data

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def pictures(reader: Reader) -> list[str]:
    mark = "data:image/svg+xml;base64,"
    sources = [str(image["src"]) for image in reader.named("img")]
    assert all(source.startswith(mark) for source in sources)
    return [base64.b64decode(source.removeprefix(mark)).decode() for source in sources]


def test_one_file_that_asks_for_nothing(curved: Any, sample: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    contents = write_report(
        curved, file, T=sample.T, X=sample.X, Y=sample.Y, Z=sample.Z, outcome_name="profit"
    )
    page = file.read_text(encoding="utf-8")
    assert len(page) < 1_500_000
    reader = Reader(page)
    addresses = [value for _, found in reader.tags for key, value in found.items() if key in ("src", "href")]
    assert all(str(address).startswith(("data:", "#")) for address in addresses)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|https?://(?!www\.w3\.org/2000/svg)", page)
    assert "default-src 'none'" in page
    for heading in ("Data", "First stage and instrument", "Outcome against action", "Effects by context"):
        assert f"<h2>{heading}</h2>" in page
    assert f"{contents.policy.value:.4g}" in reader.text
    assert "R2 of the outcome model" in reader.text
    assert f"{curved.nuisance_losses_['action_r2']:.3g}" in reader.text
    ids = [str(found["id"]) for _, found in reader.tags if "id" in found]
    assert len(ids) == len(set(ids))
    targets = {str(link["href"])[1:] for link in reader.named("a")}
    assert targets <= set(ids)
    assert all(len(str(image["alt"])) > 10 for image in reader.named("img"))
    for picture in pictures(reader):
        assert ElementTree.fromstring(picture).tag.endswith("svg")


def test_names_and_levels_are_text_and_nothing_else(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    n = 200
    X = pd.DataFrame({NASTY[0]: rng.uniform(size=n), NASTY[1]: rng.choice(NASTY, n)})
    Z = pd.DataFrame({NASTY[2]: rng.standard_normal(n)})
    T = pd.DataFrame({NASTY[3]: Z[NASTY[2]] + rng.standard_normal(n)})
    estimator = TwoStageLeastSquares().fit(T[NASTY[3]], T, Z=Z, X=X)
    file = tmp_path / "report.html"
    write_report(estimator, file, T=T, X=X, Z=Z, title=NASTY[0], outcome_name=NASTY[4])
    page = file.read_text(encoding="utf-8")
    reader = Reader(page)
    assert len(reader.named("script")) == 2
    assert not any(key.startswith("on") for _, found in reader.tags for key in found)
    assert all(str(image["src"]).startswith("data:") for image in reader.named("img"))
    for name in (NASTY[0], NASTY[1], NASTY[2], NASTY[4]):
        assert name in reader.text
    payload = re.search(r'id="panel-data">(.*?)</script>', page, re.DOTALL)
    assert payload is not None
    assert "<" not in payload[1]
    assert {column["name"] for column in json.loads(payload[1])["columns"]} == set(X)
    for picture in pictures(reader):
        tree = ElementTree.fromstring(picture)
        assert not [
            each for each in tree.iter() if each.tag.rsplit("}", 1)[-1] in ("script", "foreignObject")
        ]


def test_discrete_actions_several_columns_and_no_context_render(sample: Any) -> None:
    offer, X = np.where(sample.T["price"] > 20.0, "dear", "cheap"), sample.X[["kind"]]
    choice = TwoStageLeastSquares().fit(sample.Y, offer, Z=sample.Z, X=X)
    assert "Recommended action by context" in render(gather(choice, T=offer, X=X))
    both = sample.T.assign(advert=sample.Z["fuel"] + np.arange(300) % 7)
    Z = sample.Z.assign(other=np.arange(300) % 7)
    several = TwoStageLeastSquares().fit(sample.Y, both, Z=Z, X=X)
    assert "One action column moves at a time" in render(gather(several, T=both, X=X))
    alone = TwoStageLeastSquares().fit(sample.Y, sample.T, Z=sample.Z)
    page = render(gather(alone, T=sample.T))
    assert "<script" not in page
    assert "What if" not in page


def test_the_same_numbers_make_the_same_bytes(sample: Any) -> None:
    X = sample.X[["time"]]
    model = TwoStageLeastSquares().fit(sample.Y, sample.T, Z=sample.Z, X=X)
    first, second = (render(gather(model, T=sample.T, X=X, seed=3)) for _ in range(2))
    assert first == second


def test_packed_outcomes_come_back(curved: Any, sample: Any) -> None:
    contents = gather(curved, T=sample.T, X=sample.X)
    panel = contents.panel
    assert panel is not None
    data = panel_data(contents, panel)
    raw = np.frombuffer(base64.b64decode(data["axes"][0]["values"]), dtype="<u2")
    back = data["low"] + data["unit"] * raw.reshape(panel.values[0].shape)
    np.testing.assert_allclose(back, panel.values[0], atol=0.51 * data["unit"])
    assert data["axes"][0]["lower"] is None
    assert len(json.dumps(data)) < 1_000_000


def test_bands_are_drawn_and_packed_where_there_are_any(curved: Any, sample: Any) -> None:
    contents = gather(curved, T=sample.T, X=sample.X)
    (section,) = contents.sections
    plain = section.curves[0]
    banded = replace(plain, lower=plain.outcome - 1.0, upper=plain.outcome + 2.0)

    def bands(curve: Any) -> int:
        figure = draw_curve(section.axis, curve, curve_limits((curve,)), "profit")
        return sum(isinstance(each, PolyCollection) for each in figure.axes[0].collections)

    assert bands(banded) == bands(plain) + 1
    assert curve_limits((banded,))[1] > plain.outcome.max() + 2.0
    panel = contents.panel
    assert panel is not None
    lower, upper = ((panel.values[0] - 1.0,), (panel.values[0] + 2.0,))
    data = panel_data(contents, replace(panel, lower=lower, upper=upper))
    raw = np.frombuffer(base64.b64decode(data["axes"][0]["upper"]), dtype="<u2").reshape(upper[0].shape)
    np.testing.assert_allclose(data["low"] + data["unit"] * raw, upper[0], atol=0.51 * data["unit"])


def test_what_cannot_be_done_is_said(straight: Any, sample: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Expected a place to write the report"):
        write_report(straight, tmp_path / "missing" / "report.html", T=sample.T, X=sample.X)
    with pytest.raises(NotFittedError):
        write_report(TwoStageLeastSquares(), tmp_path / "report.html", T=sample.T, X=sample.X)
    with pytest.raises(InputError, match="time"):
        write_report(straight, tmp_path / "report.html", T=sample.T, X=sample.X.drop(columns="time"))
    assert not list(tmp_path.iterdir())
