"""Nodes of a cluster in quarantine, which get no further runs of a command."""

import os
from collections.abc import Sequence
from pathlib import Path

from attnlab.store import run_directories
from attnlab.store.atomic_files import read_json_object
from attnlab.store.run_schema import RunConfig
from attnlab.sweep.execute.progress import Progress
from attnlab.sweep.execute.quarantine import HostFaults
from attnlab.sweep.launchers.attempt import NODE_FILE

EXCLUDED_VARIABLE = "ATTNLAB_EXCLUDED_NODES"  # of a command that a chain of jobs repeats


class NodeQuarantine:
    """Quarantine of one command.

    Attributes:
        nodes: Names of the nodes in quarantine, as the cluster names them.
        is_exhausted: Whether no other node is left, so that the command launches nothing more.
    """

    def __init__(self) -> None:
        self.nodes = set(filter(None, os.environ.get(EXCLUDED_VARIABLE, "").split(",")))
        self.is_exhausted = False
        self._faults: dict[str, HostFaults] = {}
        self._runs: dict[Path, RunConfig] = {}  # read once: this is called for every run that ends

    def check_node(self, folder: Path, folders: Sequence[Path], progress: Progress) -> bool:
        """Note how a run has ended; return whether its node is put in quarantine now.

        The runs that failed there are recorded as killed, also those that end after the decision.

        Args:
            folder: directory of the run.
            folders: all runs that the launcher was given.
            progress: prints a line about a node in quarantine.
        """
        attempt = read_json_object(folder / NODE_FILE)
        node = attempt.get("node")
        if not isinstance(node, str):
            return False
        runs = self._runs
        runs |= {each: run_directories.load_run_config(each) for each in folders if each not in runs}
        faults = self._faults.setdefault(node, HostFaults())
        record = run_directories.load_run_result(folder)
        faults.add_result(runs[folder], folder, record, attempt.get("time", 0.0))
        if (reason := faults.explain_quarantine(runs)) is None:
            return False
        faults.record_lost_runs(node)
        if node in self.nodes:
            return False
        self.nodes.add(node)
        progress.print_line(f"node {node} is in quarantine for this sweep: {reason}")
        return True

    def stop_launching(self, progress: Progress) -> None:
        """Note that no other node is left."""
        self.is_exhausted = True
        progress.print_line("no other node is left: the remaining runs were not started")
