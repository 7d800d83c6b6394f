"""Saving and loading fitted estimators: one file, nothing in it is ever executed.

A model file is a zip archive of stored (not compressed) members: a JSON manifest, its checksum, the arrays in
the safetensors format and, where there are any, scikit-learn models in the skops format.
"""

from dmliv.data.savable import savable
from dmliv.persistence.model_files import load, save

__all__ = ["load", "savable", "save"]
