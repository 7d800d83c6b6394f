"""Small files in the formats of the real ones, and registry entries that state their size and checksum."""

import csv
import gzip
import hashlib
from pathlib import Path

import numpy as np

from dmliv.problems.assets import ASSETS, Asset

N_TRAIN_IMAGES = 12
N_TEST_IMAGES = 5
N_COUNTIES = 300
COUNTY_COLUMNS = (
    "civil_unemploy_2000",
    "median_HH_inc_2000",
    "femaleHH_ns_pct_2000",
    "vacant_HHunit_2000",
    "owner_occ_pct_2000",
    "eduattain_HS_2000",
)


def idx_bytes(array: np.ndarray, *, magic: bytes | None = None) -> bytes:
    """Return an array of bytes in the idx format, not compressed."""
    head = bytes([0, 0, 8, array.ndim]) if magic is None else magic
    return head + np.array(array.shape, dtype=">u4").tobytes() + array.astype(np.uint8).tobytes()


def write_small_files(folder: Path) -> dict[str, Asset]:
    """Write all files below ``folder`` and return their registry entries by name."""
    rng = np.random.default_rng(0)
    for name in ASSETS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for prefix, per_digit in (("train", N_TRAIN_IMAGES), ("t10k", N_TEST_IMAGES)):
        labels = rng.permutation(np.repeat(np.arange(10), per_digit))
        images = rng.integers(0, 256, size=(len(labels), 28, 28))
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            (folder / f"mnist/{prefix}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx_bytes(array), mtime=0))
    write_ihdp(folder / "ihdp/ihdp_npci_1.csv", rng)
    write_counties(folder / "pmcmr", rng)
    return registered(folder)


def registered(folder: Path) -> dict[str, Asset]:
    """Return registry entries for the files below ``folder``."""
    entries = {}
    for name in ASSETS:
        content = (folder / name).read_bytes()
        address = f"https://files.invalid/{name}"
        entries[name] = Asset(name, address, len(content), hashlib.sha256(content).hexdigest())
    return entries


def write_ihdp(path: Path, rng: np.random.Generator) -> None:
    table = rng.standard_normal((747, 30))
    table[:3, 5:11] = 4.0  # beyond the limit of the contexts
    np.savetxt(path, table, delimiter=",", fmt="%.15g")


def write_counties(folder: Path, rng: np.random.Generator) -> None:
    """One file with codes as numbers, one with padded codes and years; each has a county the other lacks."""
    codes = 1001 + 2 * np.arange(N_COUNTIES)
    values = rng.gamma(4.0, 2.0, size=(N_COUNTIES, len(COUNTY_COLUMNS)))
    with (folder / "County_RAW_variables.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["", "FIPS", "population", *COUNTY_COLUMNS])
        for i, code in enumerate(codes):
            writer.writerow([i + 1, code, 1000 + i, *values[i]])
    with (folder / "County_annual_PM25_CMR.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(["", "FIPS", "Year", "PM2.5", "CMR"])
        for i, code in enumerate([*codes[:-1], 99999]):
            for year in (1999, 2000, 2001):
                writer.writerow([str(3 * i + year - 1998), f"{code:05d}", year, 9.5, 400.25])
