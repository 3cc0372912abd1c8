"""Charts of a report: report.json in, SVG and PNG out. They decide nothing."""
