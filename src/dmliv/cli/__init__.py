"""The shell commands: arguments in, a call into the package, an exit code out."""

from dmliv.cli.app import app

__all__ = ["app"]
