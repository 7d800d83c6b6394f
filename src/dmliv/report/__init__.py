"""Figures and reports: they show what was fitted elsewhere."""

from dmliv.report.page import write_report

__all__ = ["write_report"]
