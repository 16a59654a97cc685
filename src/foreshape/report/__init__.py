"""One page about a network: drawn, searched, explained; memory by batch, work, the sizes that it takes. Read in any browser, without a network."""

from foreshape.report.write import report_page, write_report

__all__ = ["report_page", "write_report"]
