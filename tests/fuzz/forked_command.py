"""Run a command line in a forked child, in which torch and all verbs are imported already."""

import importlib
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from in_process_runs import InProcessChecker

from attnlab.cli import main as command_line
from attnlab.cli.commands import VERBS

FIRST_CHECKS = (  # called once the file of an attempt was parsed, or its line composed
    "attnlab.external.result_files:_build_runs", "attnlab.external.result_files:_add_values",
    "attnlab.external.question:compute_digest", "attnlab.external.candidate_log:digest_text",
    "attnlab.inference_cost.hf_config:_count_with_values",
    "attnlab.inference_cost.layer_costs:count_model_cost",
    "attnlab.model.huggingface.conversion:convert_config_to_ours",
    "attnlab.training.trained_model:_load_weights",
    "attnlab.training.trained_model:_validate_weights",
    "attnlab.report.pages.report_files:load_reworded_report",
    "attnlab.sweep.plan.check_cache:load_or_run_check", "attnlab.data.corpora.text_files:normalize_text",
    "attnlab.data.corpora.text_files:_iterate_documents",
)  # fmt: skip
MEMORY = 10 * 2**30


@dataclass(frozen=True)
class Ending:
    """How a command ended: `status` is None for a command that was stopped after its time."""

    status: int | None
    passed_first_check: bool
    output: str


def import_verbs() -> None:
    """Import the modules of all verbs."""
    for verb in VERBS.values():
        importlib.import_module(verb.entry_point.partition(":")[0])
    for name in FIRST_CHECKS:
        importlib.import_module(name.partition(":")[0])


def run_forked(
    words: Sequence[str], folder: Path, seconds: float, environment: Mapping[str, str] | None = None
) -> Ending:
    """Run `attnlab WORDS` in `folder` and return its end."""
    log, mark = folder.with_suffix(".out"), folder.with_suffix(".mark")
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.setsid()
            status = _run_child(words, folder, log, mark, environment or {})
        finally:
            os._exit(status)
    deadline = time.monotonic() + seconds
    code: int | None = None
    while time.monotonic() < deadline:
        pid, wait_status = os.waitpid(child, os.WNOHANG)
        if pid:
            code = os.waitstatus_to_exitcode(wait_status)
            break
        time.sleep(0.005)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if code is None:
        os.waitpid(child, 0)
    ending = Ending(code, mark.exists(), log.read_text(errors="replace")[-20_000:])
    log.unlink()
    mark.unlink(missing_ok=True)
    return ending


def _run_child(
    words: Sequence[str], folder: Path, log: Path, mark: Path, environment: Mapping[str, str]
) -> int:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(n, mode, buffering=1 if n else -1) for n, mode in enumerate("rww")
    )
    os.chdir(folder)
    os.environ |= environment
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**26, 2**26))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _mark_calls(mark)
    status = command_line.main(list(words))
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _mark_calls(mark: Path) -> None:
    """Create a file once a command has passed its first check."""
    from attnlab.sweep import engine

    engine.Checker = InProcessChecker  # type: ignore[misc]
    for name in FIRST_CHECKS:
        module_name, _, function_name = name.partition(":")
        module = sys.modules[module_name]
        function = getattr(module, function_name)

        @wraps(function)
        def call(*arguments: Any, _function: Any = function, **keywords: Any) -> Any:
            mark.touch()
            return _function(*arguments, **keywords)

        setattr(module, function_name, call)
