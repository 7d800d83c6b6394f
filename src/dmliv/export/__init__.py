"""Fitted models in formats that other programs run."""

from dmliv.export.onnx_files import to_onnx

__all__ = ["to_onnx"]
