"""How far a fit can be trusted: instrument strength, first stage, moment conditions, support and balance."""

from dmliv.diagnostics.diagnose import diagnose
from dmliv.diagnostics.findings import Diagnostics, Finding
from dmliv.diagnostics.registry import DiagnosedFit, diagnostic
from dmliv.diagnostics.strength import WEAK_F, InstrumentStrength, instrument_strength

__all__ = [
    "WEAK_F",
    "DiagnosedFit",
    "Diagnostics",
    "Finding",
    "InstrumentStrength",
    "diagnose",
    "diagnostic",
    "instrument_strength",
]
