"""Reports on fitted models."""

from dmliv.report.page import write_report

__all__ = ["write_report"]
