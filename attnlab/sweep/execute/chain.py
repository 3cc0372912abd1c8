"""Chain of SLURM jobs that carries out a command: the runs of a stage, then the command again, and so on.

`runs/slurm/chains/DIGEST.json` has the job of each run and counts its submissions, which ends every chain.
DIGEST is that of the command line and its working directory.
"""

import os
import sys
import uuid
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from attnlab.store import fingerprint
from attnlab.store.atomic_files import read_json, write_json
from attnlab.store.run_schema import FrozenModel

CHAIN_VARIABLE = "ATTNLAB_CHAIN"  # of a command that a chain repeats: the id of the chain


class Submission(FrozenModel):
    """Latest job of a run.

    Attributes:
        split: Number of micro-batches per batch.
        count: Submissions of the run by the chain with this split.
    """

    job: str
    split: int = 1
    count: int = 0


class Chain(FrozenModel):
    """Jobs of a command.

    Attributes:
        continuation: The job that repeats the command; None until it is submitted.
        submissions: Run id -> its latest job.
    """

    id: str
    command: tuple[str, ...]
    continuation: str | None = None
    submissions: dict[str, Submission]

    def add_jobs(self, jobs: dict[str, str], splits: dict[str, int]) -> "Chain":
        """Return the chain after the submission of a job per run; both arguments have run ids as keys."""
        submissions = dict(self.submissions)
        for run, job in jobs.items():
            earlier = submissions.get(run)
            count = earlier.count if earlier is not None and earlier.split == splits[run] else 0
            submissions[run] = Submission(job=job, split=splits[run], count=count + 1)
        return self.model_copy(update={"continuation": None, "submissions": submissions})

    def count_submissions(self, run: str) -> int:
        """Count the submissions of a run by this chain, with the latest split of its batch."""
        return self.submissions[run].count if run in self.submissions else 0


def get_chain_folder(root: Path) -> Path:
    return root / "slurm" / "chains"


def compute_command_digest() -> str:
    """Return a digest of this process's command line and working directory."""
    return fingerprint.compute_digest([os.getcwd(), *sys.argv[1:]])


def _get_chain_file(root: Path) -> Path:
    return get_chain_folder(root) / f"{compute_command_digest()}.json"


def load_chain(root: Path) -> Chain | None:
    """Load the latest chain of this process's command."""
    return _load_file(_get_chain_file(root))


def load_continued_chain(root: Path) -> Chain | None:
    """Load the chain that this process continues; None in a command that a person typed."""
    chain = load_chain(root)
    return chain if chain is not None and chain.id == os.environ.get(CHAIN_VARIABLE) else None


def start_or_continue_chain(root: Path) -> Chain:
    """Return the chain that this process continues, or a new one, which counts submissions anew.

    A new one knows the jobs of the command's earlier chain, some of which may still be in the queue.
    """
    if (continued := load_continued_chain(root)) is not None:
        return continued
    earlier = load_chain(root)
    jobs = earlier.submissions if earlier is not None else {}
    return Chain(
        id=uuid.uuid4().hex[:8],
        command=tuple(sys.argv[1:]),
        submissions={run: each.model_copy(update={"count": 0}) for run, each in jobs.items()},
    )


def write_chain(root: Path, chain: Chain) -> None:
    write_json(_get_chain_file(root), chain.to_dict())


def list_jobs(root: Path, runs: Collection[str]) -> dict[str, list[str]]:
    """Map each of the runs to its jobs in the chains of all commands."""
    jobs: dict[str, list[str]] = {run: [] for run in runs}
    for file in get_chain_folder(root).glob("[!.]*.json"):
        chain = _load_file(file)
        for run, submission in chain.submissions.items() if chain is not None else ():
            if run in jobs:
                jobs[run].append(submission.job)
    return jobs


def _load_file(file: Path) -> Chain | None:
    with suppress(OSError, ValidationError):
        return Chain.model_validate(read_json(file))
    return None
