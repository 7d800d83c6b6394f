"""Model files: damage, foreign files and crafted ones are refused in one clear line; writing is atomic."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor

import dmliv
from dmliv import DMLIV, KernelIV, TwoStageLeastSquares
from dmliv.errors import DMLIVError, InputError, ModelFileError
from dmliv.first_stage.regressors import RegressorAction, RegressorOutcome
from dmliv.learners import Learners
from dmliv.persistence.container import FORMAT_VERSION, MANIFEST, pack, unpack
from dmliv.persistence.model_files import from_bytes, to_bytes
from dmliv.persistence.sklearn_models import load_learners
from dmliv.second_stage.regressor import RegressorStructural

RNG = np.random.default_rng(0)
X, Z, HIDDEN = RNG.standard_normal((60, 2)), RNG.standard_normal(60), RNG.standard_normal(60)
T = Z + 0.5 * X[:, 0] + HIDDEN
Y = 2.0 * T + X[:, 1] + HIDDEN


def trees(regressor: Any) -> DMLIV:
    learners = Learners(
        RegressorOutcome(regressor),
        RegressorAction(regressor, n_residual_folds=2),
        RegressorStructural(regressor),
    )
    return DMLIV(learners, n_folds=2, random_state=0)


@pytest.fixture(scope="module")
def estimator() -> TwoStageLeastSquares:
    return TwoStageLeastSquares(degree=2).fit(Y, T, Z=Z, X=X)


@pytest.fixture(scope="module")
def content(estimator: TwoStageLeastSquares) -> bytes:
    return to_bytes(estimator)


@pytest.fixture(scope="module")
def forest_content() -> bytes:
    forest = RandomForestRegressor(2, min_samples_leaf=10)
    return to_bytes(trees(forest).fit(Y, T, Z=Z, X=X))


def same_answers(content: bytes, expected: Any) -> bool:
    """Return whether content loads to a model with these answers, or is refused with our own error."""
    try:
        loaded = from_bytes(content, "'model.dmliv'")
    except ModelFileError as error:
        return str(error).startswith("Expected ")
    return np.array_equal(loaded.predict(T, X), expected)


def test_no_flipped_byte_changes_an_answer(estimator: TwoStageLeastSquares, content: bytes) -> None:
    expected, masks = estimator.predict(T, X), np.random.default_rng(1).integers(1, 256, len(content))
    for position, mask in enumerate(masks.tolist()):
        damaged = bytearray(content)
        damaged[position] ^= mask
        assert same_answers(bytes(damaged), expected), (position, mask)


def test_no_flipped_byte_changes_an_answer_of_trees(forest_content: bytes) -> None:
    expected = from_bytes(forest_content, "").predict(T, X)
    rng = np.random.default_rng(1)
    for position in rng.integers(0, len(forest_content), 100).tolist():
        damaged = bytearray(forest_content)
        damaged[position] ^= 1 << int(rng.integers(8))
        assert same_answers(bytes(damaged), expected), position


def test_every_cut_is_noticed(content: bytes) -> None:
    for length in (*range(0, len(content), 11), *range(len(content) - 60, len(content))):
        with pytest.raises(ModelFileError, match="Expected"):
            from_bytes(content[:length], "'model.dmliv'")


def test_bytes_in_between_are_noticed(estimator: TwoStageLeastSquares, content: bytes) -> None:
    for position in range(0, len(content), 97):
        longer = content[:position] + b"\0" + content[position:]
        assert same_answers(longer, estimator.predict(T, X))


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"sales,price\n1,2\n",
        pickle.dumps({"a": 1}),
        b"\x93NUMPY",
        b"PK",
        b"PK\x05\x06" + b"\0" * 18,
        bytes(range(256)),
    ],
    ids=["empty", "text", "pickle", "array", "two letters", "empty zip", "garbage"],
)
def test_foreign_files_are_refused(foreign: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.dmliv"
    path.write_bytes(foreign)
    with pytest.raises(ModelFileError, match=r"Expected .*model\.dmliv") as caught:
        dmliv.load(path)
    assert "\n" not in str(caught.value)


def zipped(members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, part in members.items():
            archive.writestr(name, part)
    return buffer.getvalue()


def test_another_zip_archive_is_refused() -> None:
    for members in ({"word/document.xml": b"<w/>"}, {MANIFEST: b"{}"}, {MANIFEST: b"[1]"}):
        with pytest.raises(ModelFileError, match="another kind of zip"):
            from_bytes(zipped(members), "'x'")
    with pytest.raises(ModelFileError, match="Expected JSON"):
        from_bytes(zipped({MANIFEST: b"{"}), "'x'")


def test_a_compressed_archive_is_never_opened() -> None:
    """A megabyte of zeros shrinks to a kilobyte; a bomb of gigabytes would look just the same."""
    bomb = zipped({MANIFEST: b" " * 1_000_000}, zipfile.ZIP_DEFLATED)
    assert len(bomb) < 5_000
    with pytest.raises(ModelFileError, match="another kind of zip"):
        from_bytes(bomb, "'x'")


def test_sizes_beyond_the_file_are_refused(content: bytes) -> None:
    """The central directory announces a member of almost four gigabytes."""
    start = content.index(b"PK\x01\x02")
    huge = bytearray(content)
    huge[start + 20 : start + 28] = (0xFFFFFFF0).to_bytes(4, "little") * 2
    with pytest.raises(ModelFileError, match="Expected"):
        from_bytes(bytes(huge), "'x'")


@pytest.mark.parametrize("path", ["missing.dmliv", "", "no folder/model.dmliv"])
def test_what_is_not_there(path: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"Expected a model file at .*check the path"):
        dmliv.load(tmp_path / path)


Edit = Callable[[dict[str, Any]], object]


def edited(content: bytes, edit: Edit, **changed: bytes) -> bytes:
    """Return a file whose checksums agree, made by someone who knows the format."""
    manifest, members = unpack(content, "")
    edit(manifest)
    version = manifest.pop("format_version")
    del manifest["format"], manifest["members"]
    made = pack(manifest, members | {name.replace("_", "."): part for name, part in changed.items()})
    return made if version == FORMAT_VERSION else _with_version(made, version)


def _with_version(content: bytes, version: Any) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members[MANIFEST])
    return zipped(members | {MANIFEST: json.dumps(manifest | {"format_version": version}).encode()})


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (FORMAT_VERSION + 1, "update dmliv"),
        (10**30, "update dmliv"),
        (0, "a version"),
        ("1", "a version"),
        (None, "a version"),
    ],
)
def test_versions(content: bytes, version: Any, message: str) -> None:
    changed = edited(content, lambda manifest: manifest.update(format_version=version))
    with pytest.raises(ModelFileError, match=message):
        from_bytes(changed, "'x'")


def test_files_of_the_first_version_hold_all_trees_in_one_member(forest_content: bytes) -> None:
    import skops.io  # noqa: PLC0415

    manifest, members = unpack(forest_content, "")
    names = sorted(name for name in members if name.startswith("estimators/"))
    together = skops.io.dumps([load_learners(members.pop(name), "")[0] for name in names])
    del manifest["format"], manifest["members"], manifest["format_version"]
    # The checksum of the manifest is made with the version in it.
    old = pack(manifest, members | {"estimators.skops": together})
    np.testing.assert_array_equal(
        from_bytes(old, "'old'").predict(T, X), from_bytes(forest_content, "'new'").predict(T, X)
    )


def test_a_file_that_lacks_an_estimator_is_refused(forest_content: bytes) -> None:
    manifest, members = unpack(forest_content, "")
    del manifest["format"], manifest["members"], manifest["format_version"]
    members.pop(max(name for name in members if name.startswith("estimators/")))
    with pytest.raises(ModelFileError, match="Expected a model that this version can read"):
        from_bytes(pack(manifest, members), "'x'")


def test_saving_trees_shows_progress_where_the_fit_did(capsys: pytest.CaptureFixture[str]) -> None:
    estimator = trees(RandomForestRegressor(2, min_samples_leaf=10)).set_params(verbose=True)
    estimator.fit(Y, T, Z=Z, X=X)
    capsys.readouterr()
    to_bytes(estimator)
    assert "saving" in capsys.readouterr().err
    to_bytes(estimator.set_params(verbose=False))
    assert capsys.readouterr().err == ""


def _object(name: str, field: str, node: Any) -> Edit:
    def change(manifest: dict[str, Any]) -> None:
        found = next(each for each in manifest["objects"] if each["class"] == name)
        found["fields"][field] = node

    return change


CRAFTED: dict[str, Edit] = {
    "unknown class": lambda m: m["objects"][0].update({"class": "os.system"}),
    "unknown estimator": lambda m: m["estimator"].update({"class": "Popen"}),
    "class of the wrong kind": lambda m: m["objects"][0].update({"class": ["x"]}),
    "unknown field": _object("OutcomeSpec", "more", 1),
    "unknown node": _object("OutcomeSpec", "mean", {"eval": "1 + 1"}),
    "empty node": _object("OutcomeSpec", "mean", {}),
    "object that comes later": _object("OutcomeSpec", "mean", {"object": 10**6}),
    "negative reference": _object("OutcomeSpec", "mean", {"object": -1}),
    "missing array": _object("ActionSpec", "mean", {"array": "a999"}),
    "array without layout": _object("ActionSpec", "mean", {"array": "a0", "axes": [5, 7]}),
    "endless step": _object("ActionSpec", "mean", {"array": "a0", "step": 10**12}),
    "unknown learner": _object("OutcomeSpec", "mean", {"learner": 0}),
    "unknown device": _object("OutcomeSpec", "mean", {"device": "meta"}),
    "unhashable key": _object("OutcomeSpec", "mean", {"dict": [[[1], 2]]}),
    "state in place of a method": lambda m: m["estimator"]["state"].update(predict=1),
    "state in place of the class": lambda m: m["estimator"]["state"].update(__class__=1),
    "nothing fitted": lambda m: m["estimator"]["state"].clear(),
    "unknown parameter": lambda m: m["estimator"]["parameters"].update(shell=True),
    "no estimator": lambda m: m.pop("estimator"),
    "no objects": lambda m: m.pop("objects"),
    "objects of the wrong kind": lambda m: m.update(objects=7),
}


@pytest.mark.parametrize("edit", CRAFTED.values(), ids=CRAFTED)
def test_crafted_manifests_are_refused(content: bytes, edit: Edit) -> None:
    with pytest.raises(ModelFileError, match="Expected a model that this version can read"):
        from_bytes(edited(content, edit), "'x'")


def test_deep_nesting_is_refused(content: bytes) -> None:
    node: Any = 0
    for _ in range(900):
        node = [node]
    with pytest.raises(ModelFileError, match="Expected"):
        from_bytes(edited(content, _object("OutcomeSpec", "mean", node)), "'x'").predict(T, X)


def test_members_have_to_be_those_of_the_manifest(content: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for changed in (members | {"more": b""}, {k: v for k, v in members.items() if "safetensors" not in k}):
        with pytest.raises(ModelFileError, match="Expected the members"):
            from_bytes(zipped(changed), "'x'")
    with pytest.raises(ModelFileError, match="Expected member 'arrays"):
        from_bytes(zipped(members | {"arrays.safetensors": b"x"}), "'x'")
    with pytest.raises(ModelFileError, match="Expected an intact manifest"):
        from_bytes(zipped(members | {"manifest.sha256": b"0" * 64}), "'x'")


def test_an_array_that_announces_too_much_is_refused(content: bytes) -> None:
    header = json.dumps({"a0": {"dtype": "F64", "shape": [10**12], "data_offsets": [0, 8 * 10**12]}}).encode()
    crafted = len(header).to_bytes(8, "little") + header
    with pytest.raises(ModelFileError, match="Expected"):
        from_bytes(edited(content, lambda m: None, arrays_safetensors=crafted), "'x'")


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_fails_in_the_middle_leaves_the_old_file(
    estimator: TwoStageLeastSquares, content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "model.dmliv"
    estimator.save(path)
    assert path.read_bytes() == content
    other = TwoStageLeastSquares().fit(Y, T, Z=Z, X=X)
    # The system itself refuses to let the file grow: as good as a full disk.
    with (
        files_of_at_most(len(content) // 2),
        pytest.raises(ModelFileError, match="Expected a place to write"),
    ):
        other.save(path)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]
    other.save(path)
    np.testing.assert_array_equal(dmliv.load(path).predict(T, X), other.predict(T, X))


def test_no_place_to_write(estimator: TwoStageLeastSquares, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "missing" / "model.dmliv", tmp_path / "folder"):
        with pytest.raises(ModelFileError, match="Expected a place to write"):
            estimator.save(path)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_text_paths_and_permissions(estimator: TwoStageLeastSquares, tmp_path: Path) -> None:
    path, plain = tmp_path / "model.dmliv", tmp_path / "plain"
    estimator.save(str(path))
    plain.touch()
    # Others may read it if they may read other new files.
    assert path.stat().st_mode == plain.stat().st_mode
    assert dmliv.load(str(path)).get_params() == estimator.get_params()


class OwnRegressor(HistGradientBoostingRegressor):  # type: ignore[misc]
    """A class that only exists here."""


class OwnEstimator(TwoStageLeastSquares):
    """The same for an estimator."""


def test_objects_of_ones_own_are_named_before_anything_is_written(tmp_path: Path) -> None:
    own = trees(OwnRegressor(max_iter=2, early_stopping=False)).fit(Y, T, Z=Z, X=X)
    path = tmp_path / "model.dmliv"
    with pytest.raises(InputError, match=r"OwnRegressor in parameter learners\.outcome\.regressor"):
        own.save(path)
    noted = TwoStageLeastSquares().fit(Y, T, Z=Z, X=X)
    noted.note_ = print
    with pytest.raises(InputError, match="in attribute note_"):
        noted.save(path)
    kernel = KernelIV(random_state=0).fit(Y, T, Z=Z, X=X).set_params(first_penalties=iter([1.0]))
    with pytest.raises(InputError, match="in parameter first_penalties"):
        kernel.save(path)
    with pytest.raises(InputError, match="got OwnEstimator"):
        OwnEstimator().fit(Y, T, Z=Z, X=X).save(path)
    assert not list(tmp_path.iterdir())


def test_all_errors_are_of_the_package() -> None:
    assert issubclass(ModelFileError, DMLIVError)
    assert dmliv.ModelFileError is ModelFileError


def test_a_device_can_be_chosen(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.dmliv").write_bytes(content)
    expected = from_bytes(content, "").predict(T, X)
    np.testing.assert_array_equal(dmliv.load(tmp_path / "model.dmliv", device="cpu").predict(T, X), expected)
    with pytest.raises(InputError, match="Expected a device"):
        dmliv.load(tmp_path / "model.dmliv", device="abacus")


def test_models_with_a_former_learner_are_to_be_fitted_again(content: bytes) -> None:
    def of_an_earlier_version(manifest: dict[str, Any]) -> None:
        manifest["objects"][0].update({"class": "RivalStructural"})

    with pytest.raises(ModelFileError, match=r"learner that no longer exists \('RivalStructural'\); fit it"):
        from_bytes(edited(content, of_an_earlier_version), "'x'")


def test_former_fields_are_passed_over_if_they_meant_nothing() -> None:
    rng = np.random.default_rng(0)
    X, Z = rng.standard_normal((2, 60))
    estimator = KernelIV(random_state=0).fit(X + Z, Z, Z=Z, X=X)
    content = to_bytes(estimator)
    read = from_bytes(edited(content, _object("KernelModel", "choice_losses", {"dict": []})), "'x'")
    np.testing.assert_array_equal(read.predict(Z, X), estimator.predict(Z, X))
    with pytest.raises(ModelFileError, match="choice_losses"):
        from_bytes(edited(content, _object("KernelModel", "choice_losses", {"dict": [["1", 0.5]]})), "'x'")
