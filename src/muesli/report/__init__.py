"""What a suite found: read from its directory, as tables, and as one page to show."""

from muesli.report.study import read_study

__all__ = ["read_study"]
