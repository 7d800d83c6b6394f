"""How far a fit can be trusted: strength of the instrument, first stage, moment restriction, support."""

from dmliv.diagnostics.diagnose import diagnose
from dmliv.diagnostics.findings import Diagnostics, Finding
from dmliv.diagnostics.strength import WEAK_F, InstrumentStrength, instrument_strength

__all__ = ["WEAK_F", "Diagnostics", "Finding", "InstrumentStrength", "diagnose", "instrument_strength"]
