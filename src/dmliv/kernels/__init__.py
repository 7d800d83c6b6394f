"""Kernels: features that stand for them, bandwidths, Gaussian processes of several terms, and projections."""
