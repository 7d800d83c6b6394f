"""The container of a model file: a few named members and checksums of all of them."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dmliv.data.files import write_atomically
from dmliv.errors import ModelFileError

FORMAT = "dmliv model"
FORMAT_VERSION = 2

MANIFEST = "manifest.json"
_MANIFEST_CHECKSUM = "manifest.sha256"
# A fixed time stamp: a model file says nothing of when it was written.
_TIME_STAMP = (1980, 1, 1, 0, 0, 0)
_DAMAGED = "it was cut short or changed after it was written; save the model again"


def pack(manifest: Mapping[str, Any], members: Mapping[str, bytes]) -> bytes:
    """Return the bytes of a model file; checksums of the members are added to the manifest."""
    checksums = {name: _checksum(content) for name, content in members.items()}
    head = {"format": FORMAT, "format_version": FORMAT_VERSION, "members": checksums}
    text = json.dumps({**head, **manifest}, allow_nan=False, indent=1).encode("ascii")
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in {
            MANIFEST: text,
            _MANIFEST_CHECKSUM: _checksum(text).encode("ascii"),
            **members,
        }.items():
            archive.writestr(zipfile.ZipInfo(name, _TIME_STAMP), content)
    return buffer.getvalue()


def unpack(content: bytes, source: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return manifest and members of a model file after all checks; ``source`` names it in messages.

    Raises
    ------
    ModelFileError
        If the bytes are no model file, are damaged, or were written by a newer version.
    """
    members = read_stored(content, source)
    if MANIFEST not in members:
        raise _foreign(source)
    text = members.pop(MANIFEST)
    manifest = _read_manifest(text, source)
    version = manifest.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ModelFileError(f"Expected a version in the model file {source}, got {version!r}; {_DAMAGED}.")
    if version > FORMAT_VERSION:
        raise ModelFileError(
            f"Expected a model file of format version {FORMAT_VERSION} or older, got version {version} in "
            f"{source}; update dmliv to load it."
        )
    if members.pop(_MANIFEST_CHECKSUM, b"") != _checksum(text).encode("ascii"):
        raise ModelFileError(
            f"Expected an intact manifest in the model file {source}, got another; {_DAMAGED}."
        )
    checksums = manifest.get("members")
    if not isinstance(checksums, dict) or set(checksums) != set(members):
        raise ModelFileError(
            f"Expected the members that the manifest of {source} lists, got others; {_DAMAGED}."
        )
    for name, part in members.items():
        if checksums[name] != _checksum(part):
            raise ModelFileError(
                f"Expected member {name!r} of the model file {source} as it was written, got other bytes; "
                f"{_DAMAGED}."
            )
    return manifest, members


def read_stored(content: bytes, source: str) -> dict[str, bytes]:
    """Return the members of a zip archive that are all stored as they are.

    Sizes are compared with the number of bytes there are before anything is read, and nothing is ever
    decompressed, so a small file cannot ask for much memory.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            names = {entry.filename for entry in entries}
            plain = all(
                entry.compress_type == zipfile.ZIP_STORED
                and entry.flag_bits & 0x1 == 0
                and entry.file_size == entry.compress_size
                for entry in entries
            )
            if not plain or len(names) < len(entries) or sum(e.file_size for e in entries) > len(content):
                raise _foreign(source)
            return {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, zipfile.LargeZipFile, EOFError, OSError) as error:
        raise _not_readable(content, source) from error
    except (ValueError, RuntimeError, NotImplementedError, IndexError, KeyError) as error:
        # What the standard library raises for odd bytes in headers is not all of one kind.
        if isinstance(error, ModelFileError):
            raise
        raise _not_readable(content, source) from error


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, or raise `ModelFileError` with the reason."""
    try:
        return path.read_bytes()
    except OSError as error:
        reason = "a folder" if path.is_dir() else (error.strerror or str(error)).lower()
        raise ModelFileError(
            f"Expected a model file at {str(path)!r}, got {reason}; check the path."
        ) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole model file or nothing, or raise `ModelFileError` with the reason."""
    try:
        write_atomically(path, content)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ModelFileError(
            f"Expected a place to write a model file, got {str(path)!r}: {reason}; choose another path."
        ) from error


def _read_manifest(text: bytes, source: str) -> dict[str, Any]:
    try:
        manifest = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"Expected JSON in the manifest of {source}, got other text; {_DAMAGED}."
        ) from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise _foreign(source)
    return manifest


def _foreign(source: str) -> ModelFileError:
    return ModelFileError(
        f"Expected a model file written by save, got another kind of zip archive, {source}; check the path."
    )


def _not_readable(content: bytes, source: str) -> ModelFileError:
    if content[:2] == b"PK":
        return ModelFileError(f"Expected a whole model file, got a damaged one, {source}; {_DAMAGED}.")
    return ModelFileError(
        f"Expected a model file written by save, got something else, {source}; check the path."
    )


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
