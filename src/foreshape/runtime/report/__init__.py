"""One page about a network: drawn, searched, explained; memory by batch, work, the sizes of its inputs. It is read in any browser, offline."""

from foreshape.runtime.report.write import report_page, write_report

__all__ = ["report_page", "write_report"]
