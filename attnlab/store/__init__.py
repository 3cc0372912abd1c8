"""Files on disk and their names: run directories, leases, fingerprints. Never imports torch."""
