"""Plans: every run of a command composed, checked, matched and named before the first one starts.

Planning has two stages. A `ComposedExperiment` depends on no stored run: it is an experiment at one
replication, with its arms composed, checked and matched. A `Plan` adds the results of finished runs: the
learning rates, and with them the runs and their ids. Tuning extends a plan and keeps its composed
experiment. Until an arm's learning rate is known, its runs are planned at the lowest rate, and
`Plan.untuned_arms` lists the arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from attnlab.errors import InvalidConfig, format_suggestions
from attnlab.report.verdicts.budget_check import MIN_TRAINED_STEPS
from attnlab.stats.stopping_rules import AnytimeValid, count_min_seeds
from attnlab.store import config_groups, experiment_files, fingerprint
from attnlab.store.experiment_files import ExperimentSource
from attnlab.store.experiment_schema import Experiment, SweptGrid
from attnlab.store.guards import inputs
from attnlab.store.run_schema import RunConfig, RunLookup
from attnlab.sweep.plan import budget_matching, experiment_validation
from attnlab.sweep.plan.arm_cache import ArmCache
from attnlab.sweep.plan.arms import Arm, check_arm, link_parents, locate_invalid_key, reject_duplicate_runs
from attnlab.sweep.plan.checker import Checker
from attnlab.sweep.plan.composer import ComposedConfig, Composer
from attnlab.sweep.plan.compute_calibration.calibration_runs import plan_calibration
from attnlab.sweep.plan.compute_calibration.compute_calibration import CalibrationRuns
from attnlab.sweep.plan.overrides import (
    EXECUTION_GROUPS,
    STEPS_KEY,
    Command,
    apply_seeds,
    find_changes,
    get_root_key,
    index_by_key,
    parse_command,
    reject_hidden_overrides,
    split_common_overrides,
)
from attnlab.sweep.plan.replications.ladder_plan import transfer_learning_rates
from attnlab.sweep.plan.replications.replication import OWN_REPLICATION, Replication, plan_replications
from attnlab.sweep.plan.replications.trunks import link_trunks
from attnlab.sweep.plan.tuning import lr_tuning
from attnlab.sweep.plan.tuning.tuning_results import TuningState
from attnlab.sweep.plan.validate_claims import validate_against_estimates
from attnlab.sweep.slow_notice import notify_if_slow

SINGLE_RUN_NAME = "run"  # the name of the only arm of a command without an experiment
# settings of an experiment that a ladder replaces
KEYS_OF_LADDERS = {"compute_calibration", "corpora", "looks", "margin", "margin_reason"}
MINI_STEPS = 100  # largest number of steps of size=mini in an experiment without values for it


@dataclass(frozen=True)
class ComposedPoint:
    """One point of a command: its overrides, and the config that they compose.

    `file_lines` and `size_lines` are the overrides in the experiment file, for all sizes and for this one.
    They come before those of the command line.
    """

    overrides: tuple[str, ...]
    seeds: Sequence[int] | None
    composed: ComposedConfig
    origin: ExperimentSource
    file_lines: list[str]
    size_lines: list[str]

    @property
    def has_experiment(self) -> bool:
        return "arms" in self.composed.resolve_values() or self.origin.file is not None


@dataclass(frozen=True)
class ComposedExperiment:
    """An experiment at one replication, with its arms.

    `size` names the learning rates tuned for it; `point` has the overrides of the file and the command line.
    `rate_source` is the experiment at the ladder size whose tuned rates this one transfers. `grid`
    has the axes of a sweep without an experiment. The other fields are as in `Plan`.
    """

    experiment: Experiment
    arms: Mapping[str, Arm]
    declared: dict[str, Any] | None
    changed: tuple[str, ...]
    size: str
    point: tuple[str, ...]
    origin: ExperimentSource
    cache: ArmCache
    replication: Replication = OWN_REPLICATION
    rate_source: "ComposedExperiment | None" = None
    grid: SweptGrid | None = None


@dataclass
class Plan:
    """The runs of one report. `experiment` is None if the command names none.

    `declared` is the experiment as its file has it, None for a comparison without a file; `changed` are the
    overrides of the command line that alter it.
    """

    experiment: Experiment | None
    runs: list[RunConfig] = field(default_factory=list)
    declared: dict[str, Any] | None = None
    changed: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()  # broken invariants of its arms, if sweep.unchecked permits them
    tuning_runs: list[RunConfig] = field(default_factory=list)  # runs that tune the learning rate
    tuning: TuningState | None = None
    config_digests: dict[str, str] = field(default_factory=dict)  # per arm, independent of its seeds
    compute_calibration: CalibrationRuns | None = None
    replication: Replication = OWN_REPLICATION
    rate_plan: "Plan | None" = None  # the plan at the ladder size where learning rates are tuned
    composed_experiment: ComposedExperiment | None = None  # None for a single run
    # at their learning rates; empty for a single run
    arms: Mapping[str, Arm] = field(default_factory=dict, compare=False)

    @property
    def grid(self) -> SweptGrid | None:
        """The axes of a sweep without an experiment; None for an experiment and for a single run."""
        return self.composed_experiment.grid if self.composed_experiment else None

    @property
    def name(self) -> str:
        """The experiment's name, with the suffix of its replication."""
        return f"{self._base_name}{self.replication.title_suffix}"

    @property
    def title(self) -> str:
        """The name, with a hash if the command line changed the experiment, and the replication's suffix."""
        return f"{self._base_title}{self.replication.title_suffix}"

    @property
    def group_title(self) -> str:
        """The title of the report that combines all replications."""
        return f"{self._base_title}{self.replication.group_suffix}"

    @property
    def _base_name(self) -> str:
        return self.experiment.name if self.experiment else SINGLE_RUN_NAME

    @property
    def _base_title(self) -> str:
        change = f"~{fingerprint.compute_digest(sorted(self.changed), 8)}" if self.changed else ""
        return f"{self._base_name}{change}"

    @property
    def all_runs(self) -> list[RunConfig]:
        """The runs of tuning, compute calibration and comparison."""
        return [
            *self.tuning_runs,
            *(self.compute_calibration.runs if self.compute_calibration else ()),
            *self.runs,
        ]

    @property
    def untuned_arms(self) -> list[str]:
        """The arms whose learning rate is not known yet."""
        if self.rate_plan is not None:
            return self.rate_plan.untuned_arms
        return (
            [arm for arm in self.tuning.arms if self.tuning.get_picked_rate(arm) is None]
            if self.tuning
            else []
        )

    @property
    def ready_calibration_runs(self) -> list[RunConfig]:
        """The runs of the compute calibration, once the baseline's learning rate is known."""
        return (
            self.compute_calibration.runs
            if self.compute_calibration and self.compute_calibration.baseline not in self.untuned_arms
            else []
        )

    def describe_limits(self) -> list[str]:
        """Describe in a line each what keeps the plan from deciding its claims: few seeds, few steps.

        Anytime-valid intervals and the reason for them have a line too.
        """
        if self.experiment is None:
            return []
        lines = []
        if self.experiment.looks == "anytime":
            is_stated = (self.declared or {}).get("looks") == "anytime" or "looks" in index_by_key(
                self.changed
            )
            reason = "" if is_stated else "seed= on the command line replaces the interim analyses: "
            lines.append(
                f"{reason}looks=anytime: intervals are valid after any number of seeds, and wider than those "
                "of one analysis after all seeds (looks=null)"
            )
            seeds, needed = len(self.experiment.seeds), count_min_seeds(AnytimeValid())
            if 1 < seeds < needed:
                lines.append(f"{seeds} seeds give no 95% interval: looks=anytime needs at least {needed}")
        trained_here = [
            run for run in self.runs if not (run.config.get("parent") or run.config.get("measurement"))
        ]
        steps = [run.estimate.steps for run in trained_here]
        if steps and all(n is not None and n < MIN_TRAINED_STEPS for n in steps):
            lines.append(
                f"no arm trains for {MIN_TRAINED_STEPS} steps: the report will call them UNTRAINED and "
                "compare no losses"
            )
        return lines

    def get_max_flops(self) -> float:
        """Return the training FLOPs of the longest run."""
        return max(run.estimate.training_flops for run in self.runs)

    def group_runs_by_arm(self) -> dict[str, list[RunConfig]]:
        """Map each arm to its runs of the comparison."""
        runs_by_arm: dict[str, list[RunConfig]] = {}
        for run in self.runs:
            runs_by_arm.setdefault(run.arm, []).append(run)
        return runs_by_arm


@notify_if_slow("composing and checking the runs")
def plan_command(
    arguments: Sequence[str],
    composer: Composer,
    checker: Checker,
    lookup: RunLookup = lambda _id: None,
    commit: tuple[str | None, bool | None] = (None, None),
    module: str | None = None,
) -> list[Plan]:
    """Return one plan per report of a command.

    Args:
        lookup: Returns the result of a stored run by its id, None if there is none.
        commit: The commit of attnlab, and whether its checkout was edited.
        module: The trainer whose checked arms are cached; None turns the cache off.
    """
    parsed = parse_command(arguments, composer.loader)
    exploratory = (
        compose_swept_experiment(parsed, composer, checker, module) if len(parsed.points) > 1 else None
    )
    if exploratory is not None:
        plans = resolve_plans([exploratory], checker, lookup)
    else:
        plans = []
        for overrides in parsed.points:
            point = _compose_point(overrides, parsed.seeds, composer)
            plans += (
                resolve_plans(compose_experiments(point, composer, checker, module), checker, lookup)
                if point.has_experiment
                else [_plan_single(point, composer, checker)]
            )
    titles = [report_plan.title for report_plan in plans if report_plan.experiment]
    if len(set(titles)) < len(titles):
        raise InvalidConfig("two values of a swept key produce the same report: list each value once")
    return [_record_commit(report_plan, commit) for report_plan in plans]


def extend_plans(
    plans: Sequence[Plan],
    checker: Checker,
    lookup: RunLookup,
    commit: tuple[str | None, bool | None] = (None, None),
) -> list[Plan]:
    """Return the plans at the learning rates that tuning has selected by now, and so with other run ids."""
    composed = [report_plan.composed_experiment for report_plan in plans if report_plan.composed_experiment]
    resolved = iter(resolve_plans(composed, checker, lookup))
    extended = []
    for before in plans:
        after = next(resolved) if before.composed_experiment else before
        extended.append(_record_commit(replace(after, unchecked=before.unchecked), commit))
    return extended


def _record_commit(report_plan: Plan, commit: tuple[str | None, bool | None]) -> Plan:
    def add_commit(runs: Sequence[RunConfig]) -> list[RunConfig]:
        return [run.with_provenance(commit=commit[0], dirty=commit[1]) for run in runs]

    calibration = report_plan.compute_calibration
    return replace(
        report_plan,
        runs=add_commit(report_plan.runs),
        tuning_runs=add_commit(report_plan.tuning_runs),
        compute_calibration=calibration and calibration.with_runs(add_commit(calibration.runs)),
    )


def _compose_point(
    overrides: Sequence[str], seeds: Sequence[int] | None, composer: Composer
) -> ComposedPoint:
    """Compose a point of a command with the overrides in its experiment file."""
    composed = composer.compose_point(overrides)
    origin = _locate_origin(composed, composer, overrides, seeds)
    with origin.locate_errors():
        file_lines = experiment_validation.validate_common_overrides(composed.raw_config.get("overrides"))
    composed = composer.compose([*file_lines, *overrides]) if file_lines else composed
    with origin.locate_errors():
        _reject_unknown_sizes(composed.raw_config.get("size_overrides"), composer)
    size_lines = _get_size_overrides(composed)
    composed = composer.compose([*file_lines, *size_lines, *overrides]) if size_lines else composed
    return ComposedPoint(tuple(overrides), seeds, composed, origin, file_lines, size_lines)


def compose_experiments(
    point: ComposedPoint, composer: Composer, checker: Checker, module: str | None
) -> list[ComposedExperiment]:
    """Compose the experiment of a report at each of its replications (corpora or ladder sizes)."""
    base = point.composed.resolve_values()
    inputs.require_data_files(base)  # before any arm is composed
    declared, declared_config = _compose_declared(point, composer)
    base = {**apply_seeds(base, point.overrides, point.seeds), "name": _get_experiment_name(point)}
    first_lines = [*point.file_lines, *point.size_lines]
    with point.origin.locate_errors():
        replications = plan_replications(base, [*first_lines, *point.overrides], declared.get("corpora"))
        if isinstance(corpora := base.get("corpora"), list):
            _reject_unknown_corpora(corpora, composer)
        _reject_replaced_keys(point, base, replications)
    parts: dict[str, tuple[Experiment, dict[str, Arm], ArmCache]] = {}
    for replication in replications:
        with point.origin.locate_errors():
            parts[replication.name] = _compose_replication(
                replication, base, point, composer, checker, module
            )

    def is_neutral(override: Override) -> bool:
        others = [line for line in point.overrides if line != override.input_line]
        unchanged = plan_replications(base, [*first_lines, *others], declared.get("corpora"))
        pairs = [*zip(replications, unchanged, strict=False)]  # without data=, there may be more corpora
        if any({**base, **here.keys} != {**base, **there.keys} for here, there in pairs):
            return False
        arms = [
            [*first_lines, *there.overrides, *others, *experiment.arm_overrides[arm]]
            for here, there in pairs
            for experiment in [parts[here.name][0]]
            for arm in experiment.arms
        ]
        return composer.has_value_anyway(override, declared_config, arms)

    changed = find_changes(point.overrides, point.seeds, declared_config.get_value("seeds"), is_neutral)
    composed_by_name: dict[str, ComposedExperiment] = {}
    # the replication where learning rates are tuned comes before those that transfer them
    for replication in sorted(replications, key=lambda each: bool(each.rate_source)):
        experiment, arms, cache = parts[replication.name]
        composed_by_name[replication.name] = ComposedExperiment(
            experiment,
            arms,
            {**declared, **replication.keys},
            changed,
            size=f"{experiment.size}{replication.title_suffix}",
            point=(*point.file_lines, *point.overrides),
            origin=point.origin,
            cache=cache,
            replication=replication,
            rate_source=composed_by_name[replication.rate_source] if replication.rate_source else None,
        )
    return [composed_by_name[replication.name] for replication in replications]


def _reject_unknown_corpora(corpora: Sequence[Any], composer: Composer) -> None:
    options = composer.list_options("data")
    for i, name in enumerate(map(str, corpora)):
        if name.removesuffix(".yaml") not in options:
            hint = format_suggestions(name, options)
            raise InvalidConfig(f"corpora: data has no option {name}{hint}", ("corpora", i))


def _compose_declared(point: ComposedPoint, composer: Composer) -> tuple[dict[str, Any], ComposedConfig]:
    """Return the experiment as its file declares it, and its config before the overrides of a size."""
    lines = index_by_key(point.overrides)
    experiment_lines = [line for key, line in lines.items() if key == experiment_files.EXPERIMENT_GROUP]
    other_groups = {get_root_key(key) for key in lines if key != experiment_files.EXPERIMENT_GROUP}
    if other_groups <= {*EXECUTION_GROUPS}:
        without_size = with_size = point.composed
    else:
        without_size = composer.compose([*point.file_lines, *experiment_lines])
        with_size = composer.compose([*point.file_lines, *point.size_lines, *experiment_lines])
    declared = experiment_validation.expand_declared_claims(
        experiment_validation.select_experiment_keys(with_size.resolve_values())
    )
    return declared, without_size


def _compose_replication(
    replication: Replication,
    base: Mapping[str, Any],
    point: ComposedPoint,
    composer: Composer,
    checker: Checker,
    module: str | None,
) -> tuple[Experiment, dict[str, Arm], ArmCache]:
    """Return the experiment at a replication, and its arms with their cache."""
    experiment = experiment_validation.complete_experiment({**base, **replication.keys})
    _reject_name_of_other_file(experiment.name, point.origin)
    if replication.ladder is None:
        _reject_unused_seeds(experiment, base.get("seeds") or [], point.origin)
    first_lines = [*point.file_lines, *point.size_lines, *replication.overrides]
    overrides = [*first_lines, *point.overrides, *replication.last_overrides]
    cache = ArmCache(base, composer, module, experiment, overrides)
    arms = cache.load_arms()
    if arms is None:
        arms = _compose_arms(
            experiment, overrides, point.overrides, composer, checker, point.origin, replication.error_prefix
        )
        estimates = {name: arm.estimate for name, arm in arms.items()}
        validate_against_estimates(experiment, base.get("claims") or [], estimates)
    return experiment, arms, cache


def compose_swept_experiment(
    sweep_command: Command, composer: Composer, checker: Checker, module: str | None
) -> ComposedExperiment | None:
    """Compose the experiment of a command that sweeps keys and names none; its arms are the combinations.

    Returns None if the command names an experiment or trains nothing.
    """
    seeds = sweep_command.seeds
    first = _compose_point(sweep_command.points[0], seeds, composer)
    base, origin = first.composed.resolve_values(), first.origin
    if first.has_experiment or base.get("measurement"):
        return None
    experiment_validation.reject_experiment_keys(base)
    point, arm_overrides = split_common_overrides(sweep_command.points)
    grid = SweptGrid.from_arms(arm_overrides)
    experiment = experiment_validation.make_exploratory_experiment(base, arm_overrides, grid, seeds)
    cache = ArmCache(base, composer, module, experiment, point)
    arms = cache.load_arms()
    if arms is None:
        rejections: dict[str, InvalidConfig] = {}
        arms = _compose_arms(experiment, point, point, composer, checker, origin, rejections=rejections)
        if rejections:
            grid = _leave_out_cells(grid, rejections)
            arm_overrides = {arm: lines for arm, lines in arm_overrides.items() if arm in arms}
            experiment = experiment_validation.make_exploratory_experiment(base, arm_overrides, grid, seeds)
            cache = ArmCache(base, composer, None, experiment, point)  # it has no place for rejections
        validate_against_estimates(experiment, [], {name: arm.estimate for name, arm in arms.items()})
    defaults = composer.compose([])

    def is_neutral(override: Override) -> bool:
        others = [line for line in point if line != override.input_line]
        return composer.has_value_anyway(
            override, defaults, ([*others, *lines] for lines in arm_overrides.values())
        )

    changed = find_changes(point, seeds, [base.get("seed")], is_neutral)
    return ComposedExperiment(
        experiment,
        arms,
        None,
        (*grid.swept_overrides, *changed),
        str(base.get("size")),
        tuple(point),
        origin,
        cache,
        grid=grid,
    )


def _leave_out_cells(grid: SweptGrid, rejections: Mapping[str, InvalidConfig]) -> SweptGrid:
    """Return the grid with the reasons of its rejected combinations.

    Raises:
        InvalidConfig: A combination is rejected and one of its options has no valid combination at all.
    """
    reasons = {arm: str(error).removeprefix(f"arm {arm}: ") for arm, error in rejections.items()}
    grid = grid.model_copy(update={"rejected": reasons})
    if arm := grid.find_rejected_option():
        raise rejections[arm]
    return grid


def resolve_plans(
    experiments_to_plan: Sequence[ComposedExperiment], checker: Checker, lookup: RunLookup
) -> list[Plan]:
    """Return a plan for each composed experiment, at the learning rates that finished runs determine."""
    plans: dict[int, Plan] = {}
    for composed in sorted(experiments_to_plan, key=lambda composed: composed.rate_source is not None):
        rate_plan = plans[id(composed.rate_source)] if composed.rate_source else None
        with composed.origin.locate_errors():
            plans[id(composed)] = _resolve_plan(composed, rate_plan, checker, lookup)
    return _link_budgets([plans[id(composed)] for composed in experiments_to_plan])


def _link_budgets(plans: list[Plan]) -> list[Plan]:
    """Link the runs of the budgets of each ladder."""
    groups: dict[str, list[tuple[float, Plan]]] = {}
    for plan in plans:
        if plan.replication.ladder and plan.replication.ladder.budgets:
            budget = plan.replication.ladder.budgets[plan.replication.name]
            groups.setdefault(plan.group_title, []).append((budget, plan))
    linked = {id(plan): plan for plan in plans}
    for group in groups.values():
        group.sort(key=itemgetter(0))
        runs_by_budget = link_trunks([(budget, plan.runs) for budget, plan in group])
        for (_, plan), runs in zip(group, runs_by_budget, strict=True):
            linked[id(plan)] = replace(plan, runs=runs)
    return [linked[id(plan)] for plan in plans]


def _resolve_plan(
    composed: ComposedExperiment, rate_plan: Plan | None, checker: Checker, lookup: RunLookup
) -> Plan:
    experiment = composed.experiment
    arms = dict(composed.arms)
    replication = composed.replication
    tuning, tuning_runs = lr_tuning.plan_tuning(
        experiment, arms, composed.size, composed.point, checker, lookup, composed.origin.find_file
    )
    rates = {name: tuning.get_picked_rate(name) or tuning.grid.rates[0] for name in arms} if tuning else {}
    if replication.ladder and rate_plan:
        tuned_runs = {name: runs[0] for name, runs in rate_plan.group_runs_by_arm().items()}
        rates = transfer_learning_rates(replication.ladder, tuned_runs, arms, experiment.baseline)
    for name, rate in rates.items():
        arms[name] = arms[name].with_value(lr_tuning.LR_KEY, rate, lr_tuning.LR_FIGURE)
    compute_calibration = plan_calibration(experiment, arms[experiment.baseline], checker)
    runs = [run for arm in arms.values() for run in arm.make_run_configs(experiment.seeds)]
    rank = {arm: i for i, arm in enumerate(experiment.arms)}
    runs.sort(key=lambda run: (run.seed, rank[run.arm]))  # an interrupted sweep leaves complete pairs
    runs = link_parents(runs, set(rank))
    reject_duplicate_runs(runs)
    config_digests = {name: arm.compute_config_digest() for name, arm in arms.items()}
    composed.cache.save_arms(composed.arms)
    return Plan(
        experiment,
        runs,
        composed.declared,
        composed.changed,
        tuning_runs=tuning_runs,
        tuning=tuning,
        config_digests=config_digests,
        compute_calibration=compute_calibration,
        replication=replication,
        rate_plan=rate_plan,
        composed_experiment=composed,
        arms=arms,
    )


def _plan_single(point: ComposedPoint, composer: Composer, checker: Checker) -> Plan:
    """Return the plan of a command without an experiment: one run per seed."""
    base = point.composed.resolve_values()
    experiment_validation.reject_experiment_keys(base)
    seeds = experiment_validation.select_seeds(point.seeds, base)
    composer.reject_unused_attention_overrides(point.composed, point.overrides)
    composer.reject_options_hidden_by_preset(point.composed, point.overrides)
    arm = check_arm(SINGLE_RUN_NAME, point.composed, point.overrides, seeds[0], checker)
    return Plan(None, arm.make_run_configs(seeds))


def _get_size_overrides(composed: ComposedConfig) -> list[str]:
    """Return the overrides that an experiment sets at its size, its own keys included.

    A ladder of sizes replaces the size and sets these values itself.
    """
    lines_by_size = composed.raw_config.get("size_overrides")
    if not isinstance(lines_by_size, dict):
        return []
    base = composed.resolve_values()
    own_sizes = base.get("ladder")
    has_own_sizes = isinstance(own_sizes, dict) and bool(own_sizes.get("rungs"))
    return [] if has_own_sizes else select_size_overrides(lines_by_size, base.get("size"))


def _reject_unknown_sizes(lines_by_size: Any, composer: Composer) -> None:
    """Check that `size_overrides` names options of the group `size`, if there is one."""
    sizes = composer.list_options("size")
    for size in lines_by_size if sizes and isinstance(lines_by_size, dict) else ():
        if size not in sizes:
            raise InvalidConfig(
                f"size_overrides: no size {size}{format_suggestions(str(size), sizes)}",
                ("size_overrides", size),
            )


def select_size_overrides(lines_by_size: Mapping[str, Any], size: str | None) -> list[str]:
    """Select the overrides of a size; `mini` without any takes those of S, with at most MINI_STEPS steps."""
    lines = lines_by_size.get(size or "")
    if isinstance(lines, list) or size != "mini":
        return lines if isinstance(lines, list) else []
    return [
        f"{STEPS_KEY}={min(int(line.removeprefix(f'{STEPS_KEY}=')), MINI_STEPS)}"
        if line.startswith(f"{STEPS_KEY}=")
        else line
        for line in lines_by_size.get("S") or []
    ]


def _locate_origin(
    composed: ComposedConfig, composer: Composer, point: Sequence[str], seeds: Sequence[int] | None
) -> ExperimentSource:
    """Return the source of a composed config's experiment: its file, and the keys set on the command line."""
    line_by_key = {
        key: line for key, line in index_by_key(point).items() if key != experiment_files.EXPERIMENT_GROUP
    }
    seed_line = {"seeds": f"seed={','.join(map(str, seeds))}"} if seeds is not None else {}
    option = composed.choices.get(experiment_files.EXPERIMENT_GROUP)
    # `compare` writes a temporary experiment file
    is_permanent = option and not (composed.raw_config.get("sweep") or {}).get("command")
    file = (
        composer.find_config_file(f"{experiment_files.EXPERIMENT_GROUP}/{option}") if is_permanent else None
    )
    return ExperimentSource(
        Experiment.list_keys(), file, composer.find_config_file, {**line_by_key, **seed_line}
    )


def _get_experiment_name(point: ComposedPoint) -> Any:
    """Return the experiment's name as spelled in its file, where 2024_05 is no number."""
    value = point.composed.raw_config.get("name")
    return (point.origin.get_spelling(("name",)) or value) if isinstance(value, int | float) else value


def _reject_replaced_keys(
    point: ComposedPoint, base: Mapping[str, Any], replications: Sequence[Replication]
) -> None:
    """Check that no replication drops a key of the command line, or the corpora of the file.

    Raises:
        InvalidConfig: A ladder replaces a key, or an option of `data` the corpora.
    """
    lines = index_by_key(point.overrides)
    data = point.composed.choices.get("data")
    for replication in replications:
        if ladder := replication.ladder:
            for key in sorted(KEYS_OF_LADDERS & lines.keys() & replication.keys.keys()):
                if base[key] is not None and (key != "looks" or ladder.budgets):
                    instead = ", or set data=" if key == "corpora" else ""
                    raise InvalidConfig(f"{lines[key]}: ladder={ladder.name} replaces it: remove it{instead}")
        elif replication.is_own and base.get("corpora") not in (None, [data]):
            if line := lines.get("corpora"):
                raise InvalidConfig(f"{line}: data={data} replaces it: remove it, or set data=")
            if "data" in index_by_key(point.file_lines):
                raise InvalidConfig(
                    f"corpora of {base['name']}: data={data} in overrides replaces them: remove one",
                    ("corpora",),
                )


def _reject_unused_seeds(experiment: Experiment, seeds: Sequence[int], origin: ExperimentSource) -> None:
    """Check that the interim analyses use all seeds; `looks=` alone on the command line may use fewer."""
    is_shortened = "looks" in origin.overrides and "seeds" not in origin.overrides
    if len(seeds) > len(experiment.seeds) and not is_shortened:
        raise InvalidConfig(
            f"seeds of {experiment.name} lists {len(seeds)}, but the last interim analysis of "
            f"looks={experiment.looks} needs {len(experiment.seeds)}: remove the others, or extend looks",
            ("seeds",),
        )


def _reject_name_of_other_file(name: str, origin: ExperimentSource) -> None:
    """Check that an experiment has the name of its file: reports of two files would share a folder.

    Raises:
        InvalidConfig: It has another name, of its own or of a file that it inherits from.
    """
    if origin.file and "name" not in origin.overrides and name != origin.file.stem:
        raise InvalidConfig(
            f"{experiment_files.format_location(origin.file)}: name={name} is not the name of the file, so "
            f"its report could replace another one: write name: {origin.file.stem}, or rename the file"
        )


def _compose_arms(
    experiment: Experiment,
    overrides: Sequence[str],
    point: Sequence[str],
    composer: Composer,
    checker: Checker,
    origin: ExperimentSource,
    error_prefix: str = "",
    rejections: dict[str, InvalidConfig] | None = None,
) -> dict[str, Arm]:
    """Compose each arm from these overrides and its own, check it and match its budget.

    With `rejections`, an arm that cannot be trained is left out, and its error added to them.
    """
    figure = budget_matching.RESOURCE_ALIASES.get(experiment.match)
    arms: dict[str, Arm] = {}
    # the baseline comes first: it sets what the others are matched to
    for name in sorted(experiment.arms, key=lambda name: name != experiment.baseline):
        arm_lines = experiment.arm_overrides[name]
        reject_hidden_overrides(point, name, arm_lines)
        try:
            composed = composer.compose([*overrides, *arm_lines])
        except HydraException as error:
            error.add_note(f"{origin.format_key_location(('arm_overrides', name))}arm {name}: ")
            raise
        target: tuple[str, str, float] | None = None
        if figure is not None and arms and name not in experiment.unmatched:
            match_key = experiment.match_by
            assert match_key is not None, "`match` requires `match_by`"
            if match_key in index_by_key(arm_lines):
                raise InvalidConfig(
                    f"arm {name} sets {match_key}, which match_by solves for: remove one of the two",
                    ("arm_overrides", name),
                )
            target = (match_key, figure, arms[experiment.baseline].estimate.get(figure))
        try:
            composer.reject_unused_attention_overrides(composed, arm_lines)
            composer.reject_options_hidden_by_preset(composed, [*overrides, *arm_lines])
            seed = experiment.seeds[0]
            arms[name] = check_arm(name, composed, [*overrides, *arm_lines], seed, checker, target=target)
        except ValueError as error:
            invalid = InvalidConfig(
                f"{error_prefix}arm {name}: {error}", locate_invalid_key(str(error), name, arm_lines)
            )
            if rejections is None:
                raise invalid from error
            rejections[name] = invalid
    return arms


def format_head_count_warning(plans: Sequence[Plan]) -> str | None:
    """Return one warning about the widths and heads of all runs of a command; None if there is none."""
    return config_groups.format_mup_heads_warning(
        run.config.get("model") or {} for plan in plans for run in plan.all_runs
    )
