"""Finding, checking and downloading files; the only server is one on this machine."""

import hashlib
import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from dmliv.errors import DMLIVError, InputError
from dmliv.problems import assets
from dmliv.problems.assets import ASSETS, Asset, AssetError, copies, damage, download, locate, select

NAME = "ihdp/ihdp_npci_1.csv"
CONTENT = b"what the file holds, " * 5000


def asset_at(address: str, content: bytes = CONTENT) -> Asset:
    return Asset(NAME, address, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server whose answers depend on the path."""
    release = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/missing":
                self.send_error(404)
                return
            if self.path.startswith("/moved-"):
                self.send_response(302)
                away = "http://elsewhere.invalid/good" if self.path == "/moved-away" else "/good"
                self.send_header("Location", away)
                self.end_headers()
                return
            if self.path == "/silent":
                release.wait(30)
                return
            body = {"/wrong": b"x" * len(CONTENT), "/long": CONTENT * 3}.get(self.path, CONTENT)
            self.send_response(200)
            if self.path != "/cut-short-unannounced":
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:1000] if self.path.startswith("/cut-short") else body)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        release.set()
        running.shutdown()
        thread.join()


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Asset]:
    def enter(address: str) -> Asset:
        asset = asset_at(address)
        monkeypatch.setitem(ASSETS, NAME, asset)
        return asset

    return enter


def files_below(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


# ------------------------------------------------------------------------------------------------- registry


def test_registry_is_well_formed() -> None:
    assert len(ASSETS) == 7
    for name, asset in ASSETS.items():
        assert asset.name == name == f"{asset.folder}/{asset.filename}"
        assert asset.address.startswith("https://")
        assert asset.address.endswith(asset.filename)
        assert len(bytes.fromhex(asset.sha256)) == 32
        assert asset.size > 0


@pytest.mark.parametrize(
    ("name", "count"), [("all", 7), ("mnist", 4), ("pmcmr", 2), (NAME, 1), ("ihdp_npci_1.csv", 1)]
)
def test_selecting_by_name(name: str, count: int) -> None:
    assert len(select(name)) == count


def test_unknown_name_suggests_a_known_one() -> None:
    with pytest.raises(InputError, match=r"got 'mnits'; use one like 'mnist'"):
        select("mnits")


# --------------------------------------------------------------------------------------------- lookup order


def test_named_folder_goes_first_then_cache(
    cache: Path, tmp_path: Path, register: Callable[[str], Asset], monkeypatch: pytest.MonkeyPatch
) -> None:
    register("https://files.invalid/x")
    folders = {name: tmp_path / name for name in ("argument", "variable", "nested")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.setenv("DMLIV_DATA", str(folders["variable"]))
    (cache / "ihdp").mkdir(parents=True)
    (cache / NAME).write_bytes(CONTENT)
    assert locate(NAME) == cache / NAME
    assert locate(NAME, folders["argument"]) == cache / NAME

    flat = folders["variable"] / "ihdp_npci_1.csv"
    flat.write_bytes(CONTENT)
    assert locate(NAME) == flat
    # The argument takes the place of the variable.
    assert locate(NAME, folders["argument"]) == cache / NAME

    (folders["argument"] / "ihdp").mkdir()
    nested = folders["argument"] / NAME
    nested.write_bytes(CONTENT)
    assert locate(NAME, str(folders["argument"])) == nested
    assert list(copies(ASSETS[NAME], folders["argument"])) == [nested, cache / NAME]


@pytest.mark.parametrize("source", ["data_dir", "DMLIV_DATA"])
def test_named_folder_must_exist(
    source: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "nowhere"
    if source == "DMLIV_DATA":
        monkeypatch.setenv(source, str(missing))
    with pytest.raises(AssetError, match=f"Expected {source} to name a folder, got .*nowhere"):
        locate(NAME, missing if source == "data_dir" else None)


@pytest.mark.parametrize(
    ("content", "problem"), [(CONTENT[:-1], "bytes instead of"), (CONTENT[::-1], "sha256 .* instead of")]
)
def test_damaged_file_of_the_user_is_an_error(
    content: bytes, problem: str, cache: Path, tmp_path: Path, register: Callable[[str], Asset]
) -> None:
    asset = register("https://files.invalid/x")
    path = tmp_path / asset.filename
    path.write_bytes(content)
    with pytest.raises(AssetError, match=problem) as caught:
        locate(NAME, tmp_path)
    assert str(path) in str(caught.value)
    assert asset.address in str(caught.value)
    assert path.read_bytes() == content


def test_a_file_is_read_once_until_it_changes(
    tmp_path: Path, register: Callable[[str], Asset], monkeypatch: pytest.MonkeyPatch
) -> None:
    asset = register("https://files.invalid/x")
    path = tmp_path / "copy"
    path.write_bytes(CONTENT)
    reads = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda *a: reads.append(a) or digest(*a))
    assert damage(asset, path) is None
    assert damage(asset, path) is None
    assert len(reads) == 1
    path.write_bytes(CONTENT[::-1])
    os.utime(path, ns=(1, 1))
    assert "sha256" in damage(asset, path)
    # Another expectation of the same file is checked on its own.
    path.write_bytes(CONTENT)
    assert "sha256" in damage(asset_at(asset.address, CONTENT[::-1]), path)


def test_unreadable_file_is_damage(tmp_path: Path, register: Callable[[str], Asset]) -> None:
    assert "cannot be read" in damage(register("https://files.invalid/x"), tmp_path / "gone")


# ------------------------------------------------------------------------------------------------ downloads


def test_good_download_is_stored_and_used_again(
    server: str,
    cache: Path,
    register: Callable[[str], Asset],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register(f"{server}/good")
    path = locate(NAME)
    assert path == cache / NAME
    assert path.read_bytes() == CONTENT
    assert files_below(cache) == [NAME]
    shown = capsys.readouterr()
    assert NAME in shown.err
    assert shown.out == ""
    monkeypatch.setattr(assets, "download", lambda _: pytest.fail("downloaded twice"))
    assert locate(NAME) == path


def test_damaged_file_in_the_cache_is_replaced(
    server: str, cache: Path, register: Callable[[str], Asset]
) -> None:
    register(f"{server}/good")
    (cache / "ihdp").mkdir(parents=True)
    (cache / NAME).write_bytes(b"half a file")
    assert locate(NAME).read_bytes() == CONTENT


def test_redirect_on_this_machine_is_followed(
    server: str, cache: Path, register: Callable[[str], Asset]
) -> None:
    register(f"{server}/moved-near")
    assert locate(NAME).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/cut-short", "bytes instead of|broken connection"),
        ("/cut-short-unannounced", "1000 bytes instead of 105000"),
        ("/long", "bytes instead of 105000"),
        ("/wrong", "sha256 .* instead of"),
        ("/missing", "the answer 404 Not Found"),
        ("/moved-away", "Expected an https address, got 'http://elsewhere"),
    ],
)
def test_bad_download_leaves_nothing_behind(
    path: str, message: str, server: str, cache: Path, register: Callable[[str], Asset]
) -> None:
    register(server + path)
    with pytest.raises(AssetError, match=message) as caught:
        locate(NAME)
    assert isinstance(caught.value, DMLIVError)
    assert isinstance(caught.value, OSError)
    if path != "/moved-away":
        assert str(cache / NAME) in str(caught.value)
        assert "DMLIV_DATA" in str(caught.value)
    assert files_below(cache) == []


def test_failed_download_keeps_what_was_there(
    server: str, cache: Path, register: Callable[[str], Asset]
) -> None:
    asset = register(f"{server}/wrong")
    (cache / "ihdp").mkdir(parents=True)
    (cache / NAME).write_bytes(CONTENT)
    with pytest.raises(AssetError):
        download(asset)
    assert (cache / NAME).read_bytes() == CONTENT
    assert files_below(cache) == [NAME]


def test_no_server(cache: Path, register: Callable[[str], Asset], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    register(f"http://127.0.0.1:{port}/good")
    with pytest.raises(AssetError, match="no connection"):
        locate(NAME)
    assert files_below(cache) == []


def test_silent_server_runs_into_the_time_limit(
    server: str, cache: Path, register: Callable[[str], Asset], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assets, "TIMEOUT_SECONDS", 0.2)
    register(f"{server}/silent")
    with pytest.raises(AssetError, match="timed out"):
        locate(NAME)


def test_cache_that_cannot_be_written(server: str, cache: Path, register: Callable[[str], Asset]) -> None:
    # Permission bits do not bind a superuser; a file where a folder must be stops everyone.
    cache.write_text("not a folder")
    register(f"{server}/good")
    with pytest.raises(AssetError, match=r"Expected a cache folder that can be written, got .*cache"):
        locate(NAME)


def test_only_encrypted_addresses(cache: Path, register: Callable[[str], Asset]) -> None:
    for address in ("http://files.invalid/x", "ftp://files.invalid/x", "file:///etc/hostname"):
        register(address)
        with pytest.raises(AssetError, match="Expected an https address"):
            locate(NAME)
    shutil.rmtree(cache)
