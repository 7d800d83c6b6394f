"""Figures and reports: they show what was fitted elsewhere."""
