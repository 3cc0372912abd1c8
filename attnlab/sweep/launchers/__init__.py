"""Execution of runs on a cluster: Ray and SLURM submit attempts and read run results from the shared disk."""
