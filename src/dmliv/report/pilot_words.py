"""The sentences on a pilot, under the name that ``dmliv demo`` imports them by."""

from dmliv.report.words import pilot_words

__all__ = ["pilot_words"]
