"""Reports: each a view of the same result object. Those of mutants and diagnoses are in modules of their own, which are
imported where they are wanted."""

from .console import print_report
from .data import as_data, read_result, report_as_json, write_result
from .diff import diff_as_json, print_diff

__all__ = [
    "as_data",
    "diff_as_json",
    "print_diff",
    "print_report",
    "read_result",
    "report_as_json",
    "write_result",
]
