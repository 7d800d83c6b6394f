"""Where a trial ran is found out, not assumed."""

import subprocess
from pathlib import Path

import pytest
import torch

import dmliv
from dmliv.benchmark.environment import commit, machine, one_thread, versions


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package in a folder of its own, taken for this one."""
    file = tmp_path / "src" / "package" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text("")
    monkeypatch.setattr(dmliv, "__file__", str(file))
    return file


def test_the_commit_says_whether_the_package_differs(package: Path, tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    head = git(tmp_path, "rev-parse", "HEAD").strip()[:12]
    assert commit() == head
    # Records are written beside the package while a benchmark runs; they are no change of it.
    (tmp_path / "records.jsonl").write_text("{}")
    assert commit() == head
    package.write_text("changed = True")
    assert commit() == head + "+"


def test_a_package_that_is_not_in_the_checkout_has_no_commit(package: Path, tmp_path: Path) -> None:
    assert package.exists()
    assert commit() == ""
    git(tmp_path, "init", "-q")
    (tmp_path / "other").write_text("")
    git(tmp_path, "add", "other")
    git(tmp_path, "commit", "-q", "-m", "without the package")
    assert commit() == ""


def test_versions_and_machine() -> None:
    assert versions()["dmliv"] == dmliv.__version__
    assert versions()["torch"] == torch.__version__.split("+")[0]
    cores = machine()["cores"]
    assert isinstance(cores, int)
    assert cores >= 1
    assert machine()["cpu"]


def test_one_thread_gives_the_threads_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
