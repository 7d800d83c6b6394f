"""Small stand-ins for the external files, in a place where neither a network nor a real cache is in reach."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from dmliv.problems import assets
from dmliv.problems.assets import Asset


@pytest.fixture(scope="session")
def small_files() -> ModuleType:
    """The module that writes the files; test folders are no packages, so it is loaded by its path."""
    spec = importlib.util.spec_from_file_location("small_files", Path(__file__).with_name("small_files.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder that does not exist yet, and no folder named by the user."""
    monkeypatch.delenv("DMLIV_DATA", raising=False)
    folder = tmp_path / "cache"
    monkeypatch.setattr(assets, "user_cache_dir", lambda *_, **__: str(folder))
    return folder


@pytest.fixture(scope="session")
def small_folder(
    small_files: ModuleType, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Asset]]:
    """A folder with small files, and registry entries for them."""
    folder = tmp_path_factory.mktemp("small")
    return folder, small_files.write_small_files(folder)


@pytest.fixture
def small_data(
    small_folder: tuple[Path, dict[str, Asset]], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """The folder with small files; the registry states their sizes and checksums while a test runs."""
    folder, entries = small_folder
    for name, asset in entries.items():
        monkeypatch.setitem(assets.ASSETS, name, asset)
    return folder


@pytest.fixture
def own_data(small_data: Path, tmp_path: Path) -> Path:
    """A copy of the small files that a test may change."""
    return Path(shutil.copytree(small_data, tmp_path / "own"))


@pytest.fixture
def register_own(
    small_files: ModuleType, own_data: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """Make the registry state sizes and checksums of the test's own files as they are when this is called."""

    def enter() -> None:
        for name, asset in small_files.registered(own_data).items():
            monkeypatch.setitem(assets.ASSETS, name, asset)

    return enter
