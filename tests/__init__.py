"""Tests of tinylm: run with `python -m pytest`, or one file with `python -m unittest tests.test_NAME -v`."""
