"""Measurements that a run makes without training; each class is a `measurement` of the config.

Training imports nothing from this package, so changes here do not change the ids of trained runs.
"""
