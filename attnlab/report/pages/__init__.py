"""HTML, Markdown and the files of a report: pure functions of report.json."""
