"""Charts: in goes report.json, out come SVG and PNG. Decides nothing."""
