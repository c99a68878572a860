"""Reports of finished runs: one HTML page, and figures for a paper."""

from dladmm.report.data import Report, Run, read_report
from dladmm.report.figures import write_figures
from dladmm.report.page import render, write_page

__all__ = ["Report", "Run", "read_report", "render", "write_figures", "write_page"]
