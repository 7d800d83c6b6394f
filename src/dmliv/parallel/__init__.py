"""Where work runs: threads and processes of this machine, or the workers of a Dask or Ray cluster."""
