"""What is on disk and how it is named: files, runs, leases, fingerprints. Never imports torch."""
