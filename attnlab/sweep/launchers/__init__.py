"""Runs on a cluster: Ray and SLURM submit attempts and read the store."""
