"""Fitted models in formats that other programs run."""

from dmliv.export.files import to_onnx

__all__ = ["to_onnx"]
