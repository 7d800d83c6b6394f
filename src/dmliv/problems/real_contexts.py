"""Real contexts, as the published generator has them: infants (IHDP) and US counties (PM-CMR)."""

import csv
from functools import lru_cache
from pathlib import Path

import numpy as np

from dmliv.data import FloatArray
from dmliv.problems.assets import ASSETS, AssetError, DataDir, locate
from dmliv.problems.ihdp_order import IHDP_ORDER

N_CONTEXTS = 6

IHDP_FILE = "ihdp/ihdp_npci_1.csv"
COUNTY_FILE = "pmcmr/County_RAW_variables.csv"
YEAR_FILE = "pmcmr/County_annual_PM25_CMR.csv"

# Treatment, two outcomes and their two means come first, then the covariates; the continuous ones lead.
_IHDP_COLUMNS = slice(5, 5 + N_CONTEXTS)
_IHDP_WIDTH = 30
_COUNTY_COLUMNS = (
    "civil_unemploy_2000",
    "median_HH_inc_2000",
    "eduattain_HS_2000",
    "femaleHH_ns_pct_2000",
    "vacant_HHunit_2000",
    "owner_occ_pct_2000",
)
_YEAR = "2000"
_LIMIT = 3.0


def ihdp_contexts(data_dir: DataDir = None) -> FloatArray:
    """Return birth weight, head, weeks preterm, birth order, health and mother's age of 747 infants.

    The file holds them standardised; they are clipped to [-3, 3]. The array (747, 6) is read-only.
    """
    return _read_ihdp(locate(IHDP_FILE, data_dir), ASSETS[IHDP_FILE].sha256)


def pmcmr_contexts(data_dir: DataDir = None) -> FloatArray:
    """Return six covariates of US counties in the year 2000.

    Unemployment, household income, high-school attainment, share of households headed by women, vacant
    housing and share of owner-occupied housing. They are standardised over all counties with covariates,
    clipped to [-3, 3] and kept for those counties that the table of pollution and mortality has in that year,
    in the order of that table. The array (2132, 6) is read-only.
    """
    counties, years = ((locate(name, data_dir), ASSETS[name].sha256) for name in (COUNTY_FILE, YEAR_FILE))
    return _read_pmcmr(counties, years)


# The checksums are part of the keys: a file whose content is new is read anew.


@lru_cache(maxsize=4)
def _read_ihdp(path: Path, sha256: str) -> FloatArray:
    del sha256
    table = np.loadtxt(path, delimiter=",", dtype=np.float64)
    if table.shape != (len(IHDP_ORDER), _IHDP_WIDTH):
        raise AssetError(
            f"Expected {len(IHDP_ORDER)} rows of {_IHDP_WIDTH} columns in {path}, got {table.shape}; "
            "replace the file."
        )
    return _frozen(np.clip(table[IHDP_ORDER, _IHDP_COLUMNS], -_LIMIT, _LIMIT))


@lru_cache(maxsize=4)
def _read_pmcmr(counties: tuple[Path, str], years: tuple[Path, str]) -> FloatArray:
    # One file pads the county codes with zeros, the other does not: they meet as numbers.
    with counties[0].open(newline="", encoding="utf-8") as stream:
        rows = {
            int(row["FIPS"]): [float(row[name]) for name in _COUNTY_COLUMNS] for row in csv.DictReader(stream)
        }
    with years[0].open(newline="", encoding="utf-8") as stream:
        codes = [int(row["FIPS"]) for row in csv.DictReader(stream) if row["Year"] == _YEAR]
    table = np.array(list(rows.values()))
    standardised = np.clip((table - table.mean(axis=0)) / table.std(axis=0), -_LIMIT, _LIMIT)
    place = {code: index for index, code in enumerate(rows)}
    return _frozen(standardised[[place[code] for code in codes if code in place]])


def _frozen(table: FloatArray) -> FloatArray:
    """Return the table as a read-only array: it is shared by all who ask for it."""
    table.flags.writeable = False
    return table
