from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest

from dmliv.problems.assets import AssetError
from dmliv.problems.ihdp_order import IHDP_ORDER
from dmliv.problems.real_contexts import COUNTY_FILE, IHDP_FILE, YEAR_FILE, ihdp_contexts, pmcmr_contexts


def test_order_is_a_permutation() -> None:
    np.testing.assert_array_equal(np.sort(IHDP_ORDER), np.arange(747))


def test_ihdp_takes_the_continuous_columns_in_the_published_order(small_data: Path) -> None:
    table = np.loadtxt(small_data / IHDP_FILE, delimiter=",")
    X = ihdp_contexts(small_data)
    assert X.shape == (747, 6)
    np.testing.assert_array_equal(X, np.clip(table[:, 5:11], -3, 3)[IHDP_ORDER])
    assert np.abs(X).max() == 3
    assert not X.flags.writeable


def test_pmcmr_agrees_with_the_rule_in_pandas(small_files: ModuleType, small_data: Path) -> None:
    names = [
        "civil_unemploy_2000",
        "median_HH_inc_2000",
        "eduattain_HS_2000",
        "femaleHH_ns_pct_2000",
        "vacant_HHunit_2000",
        "owner_occ_pct_2000",
    ]
    counties = pd.read_csv(small_data / COUNTY_FILE, index_col=0)[["FIPS", *names]]
    counties[names] = ((counties[names] - counties[names].mean()) / counties[names].std(ddof=0)).clip(-3, 3)
    years = pd.read_csv(small_data / YEAR_FILE, index_col=0).query("Year == 2000")[["FIPS"]]
    expected = years.merge(counties, on="FIPS")[names].to_numpy()

    X = pmcmr_contexts(small_data)
    assert X.shape == (small_files.N_COUNTIES - 1, 6)
    np.testing.assert_allclose(X, expected, rtol=1e-12, atol=1e-12)
    assert X.max() == 3


def test_new_content_is_read_anew(own_data: Path, register_own: Callable[[], None]) -> None:
    before = ihdp_contexts(own_data)
    assert ihdp_contexts(own_data) is before
    table = np.loadtxt(own_data / IHDP_FILE, delimiter=",")
    np.savetxt(own_data / IHDP_FILE, table / 2, delimiter=",")
    with pytest.raises(AssetError, match="instead of"):
        ihdp_contexts(own_data)
    register_own()
    assert not np.array_equal(ihdp_contexts(own_data), before)


def test_ihdp_with_other_rows_is_refused(own_data: Path, register_own: Callable[[], None]) -> None:
    np.savetxt(own_data / IHDP_FILE, np.zeros((10, 30)), delimiter=",")
    register_own()
    with pytest.raises(AssetError, match=r"747 rows of 30 columns .* got \(10, 30\)"):
        ihdp_contexts(own_data)
