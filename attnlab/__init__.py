"""attnlab: a configurable experiment suite and ablation harness for attention.

Importing the package imports nothing heavy; `python -m attnlab --help` stays fast because of it.
"""

__version__ = "0.1.0"
