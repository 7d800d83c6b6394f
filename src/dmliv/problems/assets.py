"""Finding the external files of the problems: a folder the user names, the cache, then a download.

Every file is known by its size and sha256, and no file is used before both were checked, wherever it was
found. Nothing is ever unpickled.

A folder the user names (the argument ``data_dir``, else the environment variable ``DMLIV_DATA``) may hold a
file under its name here, for example ``mnist/train-labels-idx1-ubyte.gz``, or without the folder part.
"""

import hashlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, TypeAlias
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from platformdirs import user_cache_dir
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from dmliv.errors import DMLIVError, InputError, listed

DataDir: TypeAlias = str | os.PathLike[str] | None
"""A folder with files the user has, or None."""

DATA_VARIABLE = "DMLIV_DATA"
TIMEOUT_SECONDS = 30.0

_CHUNK_BYTES = 1 << 16
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1", "::1"})


class AssetError(DMLIVError, OSError):
    """An external file that is damaged, cannot be downloaded or cannot be stored."""


@dataclass(frozen=True)
class Asset:
    """An external file: where it can be downloaded, its bytes and its checksum in hexadecimal digits.

    Its name is folder and file name, joined by "/": its place in the cache and in a folder of the user.
    """

    name: str
    address: str
    size: int
    sha256: str

    @property
    def folder(self) -> str:
        """The folder part of the name, the data set the file belongs to."""
        return self.name.split("/")[0]

    @property
    def filename(self) -> str:
        """The name without its folder."""
        return self.name.rsplit("/", maxsplit=1)[-1]


# The mirror that torchvision uses; for the others a fixed commit, so that the content cannot change.
_ADDRESSES = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "ihdp": "https://raw.githubusercontent.com/AMLab-Amsterdam/CEVAE/"
    "9081f863e24ce21bd34c8d6a41bf0edc7d1b65dd/datasets/IHDP/csv/",
    "pmcmr": "https://raw.githubusercontent.com/anpwu/Meta-EM/"
    "94214ab2218bf64d98c76587a14478e456f159f3/Data/Causal/PM25/",
}

_CONTENTS = """
440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609 9912422 mnist/train-images-idx3-ubyte.gz
3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c 28881 mnist/train-labels-idx1-ubyte.gz
8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6 1648877 mnist/t10k-images-idx3-ubyte.gz
f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6 4542 mnist/t10k-labels-idx1-ubyte.gz
2bdc8b94fdf2f669b1d3d49325fd9359d88418566545003867841312a1653411 161908 ihdp/ihdp_npci_1.csv
cef62726ad49113712a4cf7b6c972c0d6b7949b2cee40fb2b617396961584b7b 361476 pmcmr/County_RAW_variables.csv
272de383938fa7f81f1e33ee953644397e2420c0073e77e9a569c41601dcf36c 2486250 pmcmr/County_annual_PM25_CMR.csv
"""


def _registry() -> dict[str, Asset]:
    """Return the known files by name."""
    found = {}
    for line in _CONTENTS.strip().splitlines():
        sha256, size, name = line.split()
        folder, filename = name.split("/")
        found[name] = Asset(name, _ADDRESSES[folder] + filename, int(size), sha256)
    return found


ASSETS = _registry()
"""The files by name."""

# Files found intact in this process: path, time of change, size and checksum.
_intact: set[tuple[str, int, int, str]] = set()


# --------------------------------------------------------------------------------------------------- finding


def select(name: str) -> list[Asset]:
    """Return the files a user means by ``name``: one file, those of a data set ("mnist"), or "all"."""
    chosen = [a for a in ASSETS.values() if name in ("all", a.name, a.filename, a.folder)]
    if not chosen:
        known = ["all", *dict.fromkeys(a.folder for a in ASSETS.values()), *ASSETS]
        near = get_close_matches(name, known, n=1) or known
        raise InputError(
            f"Expected the name of a file or a data set, got {name!r}; use one like {listed(near)}."
        )
    return chosen


def cache_dir() -> Path:
    """Return the folder that downloads are kept in."""
    return Path(user_cache_dir("dmliv", appauthor=False))


def copies(asset: Asset, data_dir: DataDir = None) -> Iterator[Path]:
    """Yield the copies of a file there are on this machine, damaged or not, in the order of preference."""
    folder = _user_dir(data_dir)
    places = [] if folder is None else [folder / asset.name, folder / asset.filename]
    yield from (place for place in (*places, cache_dir() / asset.name) if place.is_file())


def damage(asset: Asset, path: Path) -> str | None:
    """Return what is wrong with a copy of a file, None if nothing is.

    A copy is read once in a process; after that only a change of its size or time makes it be read again.
    """
    try:
        stat = path.stat()
        if stat.st_size != asset.size:
            return f"{stat.st_size} bytes instead of {asset.size}"
        key = (str(path), stat.st_mtime_ns, stat.st_size, asset.sha256)
        if key not in _intact:
            with path.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
            if found != asset.sha256:
                return f"sha256 {found} instead of {asset.sha256}"
            _intact.add(key)
    except OSError as error:
        return f"a file that cannot be read ({error.strerror})"
    return None


def locate(name: str, data_dir: DataDir = None) -> Path:
    """Return the path of an intact copy of a file, a key of `ASSETS`; download it if there is none.

    ``data_dir`` is a folder to look in first, instead of the one in the environment variable ``DMLIV_DATA``.
    """
    asset = ASSETS[name]
    for path in copies(asset, data_dir):
        problem = damage(asset, path)
        if problem is None:
            return path
        # A damaged file in the cache is replaced; a file of the user's own is not ours to pass over.
        if path != cache_dir() / asset.name:
            raise AssetError(f"Expected an intact {asset.name} in {path}, got {problem}; {_remedy(asset)}")
    return download(asset)


def _user_dir(data_dir: DataDir) -> Path | None:
    """Return the folder the user names, None if no folder is named."""
    named = os.environ.get(DATA_VARIABLE) if data_dir is None else data_dir
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        source = DATA_VARIABLE if data_dir is None else "data_dir"
        raise AssetError(f"Expected {source} to name a folder, got {str(named)!r}; correct or remove it.")
    return folder


def _remedy(asset: Asset) -> str:
    """Return what a user can do without our download."""
    return (
        f"get {asset.address} ({asset.size} bytes) by other means and save it as {cache_dir() / asset.name}, "
        f"or in a folder of your own that you name with data_dir= or the variable {DATA_VARIABLE}."
    )


# ----------------------------------------------------------------------------------------------- downloading


def download(asset: Asset) -> Path:
    """Download a file into the cache, in place of any copy there, and return its path.

    The file appears under its name only when it is complete and its checksum is right.
    """
    target = cache_dir() / asset.name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{asset.filename}.", suffix=".part")
    except OSError as error:
        raise AssetError(
            f"Expected a cache folder that can be written, got {target.parent} ({error.strerror}); make it "
            f"writable, or {_remedy(asset)}"
        ) from error
    part = Path(temporary)
    try:
        with os.fdopen(handle, "wb") as stream:
            _transfer(asset, stream)
        if problem := damage(asset, part):
            raise AssetError(
                f"Expected {asset.name} from {asset.address}, got {problem}; try again, or {_remedy(asset)}"
            )
        part.replace(target)
    except AssetError:
        raise
    except (OSError, HTTPException) as error:
        raise AssetError(
            f"Expected to download {asset.name}, got {_reason(error)}; try again, or {_remedy(asset)}"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return target


def _transfer(asset: Asset, stream: IO[bytes]) -> None:
    """Write what the address of a file holds to ``stream`` behind a progress bar."""
    _check_address(asset.address)
    request = Request(asset.address, headers={"User-Agent": "dmliv"})
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
    )
    with bar, build_opener(_CheckedRedirects).open(request, timeout=TIMEOUT_SECONDS) as response:
        task = bar.add_task(asset.name, total=asset.size)
        received = 0
        # One byte too many proves the file wrong: nobody's disk fills up with the rest.
        while received <= asset.size and (chunk := response.read(_CHUNK_BYTES)):
            stream.write(chunk)
            received += len(chunk)
            bar.update(task, completed=received)


def _check_address(address: str) -> None:
    """Raise unless an address is encrypted or on this machine."""
    parts = urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _THIS_MACHINE):
        raise AssetError(f"Expected an https address, got {address!r}; download the file by hand.")


class _CheckedRedirects(HTTPRedirectHandler):
    """Follows a redirect only to addresses that could be asked for directly."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        _check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _reason(error: Exception) -> str:
    """Return in a few words why a download failed."""
    if isinstance(error, HTTPError):
        return f"the answer {error.code} {error.reason}"
    if isinstance(error, URLError):
        return f"no connection ({error.reason})"
    return f"a broken connection ({error or type(error).__name__})"
