"""Simulate workers that share a store of runs, and print the Markdown tables of docs/scale.md.

Question: how much of the GPU time of 8 to 512 workers do interruptions, start-up and waiting take?
Cost: some seconds on one core. Nothing is trained.
Command: python sweeps/simulate_scale.py

A worker starts a run (start-up, then its training), ends it, and takes the next free one. Two kinds of
interruption end a worker at random times (exponential, seeds fixed), and a replacement starts after a delay:

- a preemption gives notice: the worker saves a checkpoint and releases the run, which is free at once;
- a loss gives none: the run goes back to its last checkpoint and is free once its heartbeat is stale.
"""

import argparse
import heapq
import random
from collections import deque
from dataclasses import dataclass, replace

from attnlab.store.lease import HEARTBEAT_SECONDS, STALE_SECONDS

TAKEOVER_SECONDS = STALE_SECONDS * 6 / 5  # a stale heartbeat, then the wait of `lease._acquire_lease`
WORKERS = (8, 32, 128, 512)
HOUR = 3600.0


@dataclass(frozen=True)
class Setting:
    """A sweep and the interruptions of its workers; times in seconds."""

    title: str
    runs: int
    run_seconds: float
    spread: float  # relative standard deviation of the runs' durations
    startup_seconds: float  # of every start of a run
    checkpoint_seconds: float
    preemptions_per_hour: float = 0.0  # of each worker
    losses_per_hour: float = 0.0
    replacement_seconds: float = 300.0


@dataclass(frozen=True)
class Outcome:
    """Seconds until the last run ended, and how the workers spent them (the rest is idle)."""

    seconds: float
    workers: int
    trained: float
    startup: float
    lost: float
    away: float

    def compute_share(self, seconds: float) -> float:
        return seconds / (self.seconds * self.workers)

    @property
    def idle(self) -> float:
        return self.seconds * self.workers - self.trained - self.startup - self.lost - self.away


SMALL = Setting(
    "10,000 runs of 25M parameters, 75M tokens each: 39 s", runs=10_000, run_seconds=75e6 / 1.92e6,
    spread=0.05, startup_seconds=20.0, checkpoint_seconds=8.5,
)  # fmt: skip
LARGE = Setting(
    "1,000 runs of 124M parameters, 2.5 billion tokens each: 79 minutes", runs=1_000,
    run_seconds=2.5e9 / 528e3, spread=0.05, startup_seconds=60.0, checkpoint_seconds=600.0,
)  # fmt: skip
SPOT = {"preemptions_per_hour": 1 / 4, "losses_per_hour": 1 / 24}


def simulate(setting: Setting, workers: int, seed: int = 0) -> Outcome:
    """Run the sweep in simulated time."""
    draw = random.Random(f"{seed} {workers} {setting.title}")
    free = deque(
        (seconds, seconds)
        for seconds in (
            setting.run_seconds * max(0.1, draw.gauss(1, setting.spread)) for _ in range(setting.runs)
        )
    )  # remaining and total seconds of a run
    trained = sum(total for _, total in free)
    startup = lost = end = 0.0
    absences: list[tuple[float, float]] = []
    idle: list[int] = []
    unfinished, order = setting.runs, 0
    events: list[tuple[float, int, int | None, tuple[float, float] | None]] = []  # time, order, worker, run

    def add_event(time: float, worker: int | None, run: tuple[float, float] | None = None) -> None:
        nonlocal order
        order += 1
        heapq.heappush(events, (time, order, worker, run))

    def draw_interruption(time: float) -> tuple[float, bool]:
        rates = (setting.preemptions_per_hour, setting.losses_per_hour)
        preempted, ended = (time + HOUR * draw.expovariate(rate) if rate else float("inf") for rate in rates)
        return min(preempted, ended), ended < preempted

    interruptions = [draw_interruption(0.0) for _ in range(workers)]
    for worker in range(workers):
        add_event(0.0, worker)
    while unfinished:
        now, _, worker, run = heapq.heappop(events)
        if worker is None:
            assert run is not None
            free.append(run)
            if not idle:
                continue
            worker = idle.pop()
        if interruptions[worker][0] <= now:  # while idle
            now = _replace_worker(setting, interruptions[worker][0], now, absences)
            interruptions[worker] = draw_interruption(now)
            add_event(now, worker)
            continue
        if not free:
            idle.append(worker)
            continue
        remaining, total = free.popleft()
        stop, is_loss = interruptions[worker]
        finish = now + setting.startup_seconds + remaining
        if finish <= stop:
            startup += setting.startup_seconds
            unfinished -= 1
            end = max(end, finish)
            add_event(finish, worker)
            continue
        startup += min(stop - now, setting.startup_seconds)
        done = max(0.0, stop - now - setting.startup_seconds)
        progress = total - remaining
        reached = progress + done
        if is_loss:
            kept = max(progress, reached // setting.checkpoint_seconds * setting.checkpoint_seconds)
            lost += reached - kept
            add_event(stop + TAKEOVER_SECONDS, None, (total - kept, total))
        else:
            add_event(stop, None, (total - reached, total))
        back = _replace_worker(setting, stop, stop, absences)
        interruptions[worker] = draw_interruption(back)
        add_event(back, worker)
    away = sum(max(0.0, min(back, end) - gone) for gone, back in absences)
    return Outcome(end, workers, trained, startup, lost, away)


def _replace_worker(setting: Setting, gone: float, now: float, absences: list[tuple[float, float]]) -> float:
    """Record an absence and return the time at which the replacement can take a run."""
    back = max(now, gone + setting.replacement_seconds)
    absences.append((gone, back))
    return back


def format_table(setting: Setting, worker_counts: tuple[int, ...]) -> str:
    """Format the outcomes as a Markdown table with a title."""
    lines = [
        f"{setting.title}",
        "",
        "| workers | hours | runs/h | training | start-up | lost work | replaced | idle | heartbeats/s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for workers in worker_counts:
        outcome = simulate(setting, workers)
        parts = (outcome.trained, outcome.startup, outcome.lost, outcome.away, outcome.idle)
        shares = " | ".join(f"{100 * outcome.compute_share(part):.1f}%" for part in parts)
        hours = outcome.seconds / HOUR
        figures = f"{workers} | {hours:,.1f} | {setting.runs / hours:,.0f}"
        lines.append(f"| {figures} | {shares} | {workers / HEARTBEAT_SECONDS:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, help="runs of every sweep (default: as in the page)")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="numbers of workers")
    options = parser.parse_args()
    for setting in (SMALL, LARGE):
        setting = replace(setting, runs=options.runs or setting.runs)
        calm = replace(setting, title=f"{setting.title}, no interruptions")
        spot = replace(
            setting, title=f"{setting.title}, a preemption per 4 and a loss per 24 worker-hours", **SPOT
        )
        for case in (calm, spot):
            print(f"{format_table(case, tuple(options.workers))}\n")


if __name__ == "__main__":
    main()
