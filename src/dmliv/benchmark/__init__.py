"""The evaluation of the paper as one resumable benchmark: trials as data, a runner, records, views."""
