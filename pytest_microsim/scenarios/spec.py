"""The schema of a scenario: what ``*.scenario.yaml`` may say, with types, units and defaults.

The structs are the schema, as in :mod:`microsim_vm.templates.spec`, and the same reader walks them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from microsim_vm.templates.spec import Arguments, ControllerLimits, Identifier, Word
from msgspec import UNSET

from .kinds import (
    Better,
    By,
    ColumnName,
    Confidence,
    Count,
    Hold,
    JudgedBy,
    MetricName,
    Must,
    Name,
    NotNegative,
    Number,
    Positive,
    PositiveRange,
    Range,
    RelativePath,
    Repeat,
    Seed,
    SeedCount,
    SeedList,
    SeedRange,
    Share,
    Steps,
    StepSeconds,
    Tag,
    Text,
    Texts,
    TimeUnit,
    Values,
    Variance,
    WholeRange,
    World,
)

SUFFIX = ".scenario.yaml"


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every part of the schema has in common."""


class Normal(_Part, frozen=True):
    """A normal distribution, cut off where it says.

    Attributes:
        mean: Its mean.
        sd: Its standard deviation, before it is cut off.
        min: No value below this one is drawn.
        max: No value above this one is drawn.
    """

    mean: Number
    sd: Positive
    min: Number | None = None
    max: Number | None = None


class Parameter(_Part, frozen=True):
    """What one parameter of the world is: exactly one of these.

    Attributes:
        uniform: Drawn for each seed, between these two numbers.
        log_uniform: The same, where each factor is as likely as another of the same size: 0.1 to 1 as 1 to 10.
        normal: Drawn for each seed from a normal distribution.
        integers: A whole number drawn for each seed, from the first to the second, both included.
        choice: One of these values, drawn for each seed.
        grid: Each of these values, with all seeds: a group of seeds of its own.
        value: This value.
    """

    uniform: Range | None = None
    log_uniform: PositiveRange | None = None
    normal: Normal | None = None
    integers: WholeRange | None = None
    choice: Values | None = None
    grid: Values | None = None
    value: Any = UNSET

    @property
    def written(self) -> list[str]:
        """Which of its fields are written; one, in a file that can be used."""
        others = [name for name in self.__struct_fields__ if name != "value" and getattr(self, name) is not None]
        return others if self.value is UNSET else [*others, "value"]


class Bound(_Part, frozen=True):
    """What one number has to be; all that is written has to hold, and NaN is none of it.

    Attributes:
        below: Less than this.
        at_most: This or less.
        above: More than this.
        at_least: This or more.
        equals: This, exactly.
        between: From the first to the second, both included.
    """

    below: Number | None = None
    at_most: Number | None = None
    above: Number | None = None
    at_least: Number | None = None
    equals: Number | None = None
    between: Range | None = None


class Expectations(_Part, frozen=True):
    """What an episode has to come to.

    Attributes:
        metrics: Of its scores, by name.
        total_reward: The sum of its rewards.
        steps: How many steps it took.
        terminated: Whether the world ended it, in place of a limit.
    """

    metrics: dict[MetricName, Bound] = {}
    total_reward: Bound | None = None
    steps: Bound | None = None
    terminated: bool | None = None


class PassRate(_Part, frozen=True):
    """How many of the seeds have to pass; no seed then fails on its own.

    Attributes:
        at_least: The share that has to pass.
        confidence: Of the interval that is reported, and of the bound.
        by: "rate": the share that passed has to reach ``at_least``. "bound": the lower end of its one-sided
            Clopper-Pearson interval has to, so that no luck with the seeds is enough.
    """

    at_least: Share
    confidence: Confidence = 0.95
    by: JudgedBy = "rate"


class Tolerance(_Part, frozen=True):
    """How far a column of a trajectory may be from the baseline's.

    Attributes:
        absolute: In the column's unit.
        relative: As a share of the baseline's number.
        per_s: In the column's unit, for each second of simulated time since the reset.
        until_s: What comes later than this is not compared, in seconds of simulated time.
    """

    absolute: NotNegative = 0.0
    relative: NotNegative = 0.0
    per_s: NotNegative = 0.0
    until_s: NotNegative | None = None


class Difference(_Part, frozen=True):
    """A mean difference of a metric from the baseline's that counts as none.

    Attributes:
        absolute: In the metric's unit.
        relative: As a share of the baseline's mean.
    """

    absolute: NotNegative = 0.0
    relative: NotNegative = 0.0


class Baseline(_Part, frozen=True):
    """What is allowed against the baseline.

    Attributes:
        tolerance: How far trajectories may be from it, by column: a number is an absolute one.
        steps: By how many steps an episode may be longer or shorter.
        metrics: Differences of metrics that count as none, by name: a number is an absolute one.
        must: A seed whose trajectory is not "identical", or not within "tolerance", fails the group, in place of a
            warning.
        across: Knobs in which the environment may differ from the baseline's.
        columns: Columns that are kept; all by default.
    """

    tolerance: dict[ColumnName, NotNegative | Tolerance] = {}
    steps: Steps = 0
    metrics: dict[MetricName, NotNegative | Difference] = {}
    must: Must | None = None
    across: tuple[Text, ...] = ()
    columns: tuple[ColumnName, ...] | None = None


class RecordingFile(_Part, frozen=True):
    """Recorded actions, and how to read them.

    Attributes:
        file: An MCAP file, a rosbag2, or a table, relative to the scenario's file.
        topic: The messages' topic, where there are several.
        field: The numbers of an action, in order: columns, or fields of messages.
        time: The column, or the field, that has the times.
        time_unit: Of a time that is a plain number.
        by: "time": in each step the row that is in force at the world's simulated time. "step": a row for each step.
        hold: What lies between two rows: the one before, or a line between the two.
        step_seconds: Simulated seconds of one step, where the world tells no time.
    """

    file: RelativePath
    topic: Text | None = None
    field: Text | Texts | None = None
    time: Text | None = None
    time_unit: TimeUnit = "s"
    by: By | None = None
    hold: Hold = "previous"
    step_seconds: StepSeconds | None = None


class Document(_Part, frozen=True):
    """The keys of one scenario file.

    Attributes:
        name: What the test is called; by default the file's name without ``.scenario.yaml``.
        description: A line for readers.
        world: The template; by default the session's world.
        controller: Python file or program that drives the world, relative to this file; a program with arguments
            as a list of words.
        recording: Recorded actions that drive it instead: a file's path, or how to read it.
        seeds: A number of seeds, a range in quotes such as "0:64", or a list; by default one seed of the test's own.
        max_steps: Steps after which an episode is truncated.
        limits: What the controller may use, in place of what the template says.
        repeat: How often each seed is run, to see whether it gives the same.
        variance: What a group of copied episodes amounts to.
        deterministic: The world has no randomness, so that copies are right.
        support: How many different episodes the world has, where they are few.
        min_effective_seeds: How many independent episodes the seeds have to amount to.
        strict: A group that holds nothing to tell copies by fails.
        unchecked: Metrics that no gate looks at.
        parameters: What the world's ``reset`` is given as options, by name.
        parameters_seed: Other draws of all parameters.
        expect: What each episode has to come to.
        pass_rate: How many of the seeds have to pass, where not all have to.
        better: Which direction of a metric is the better one, where ``expect`` does not show it by a bound.
        baseline: What is allowed against the baseline.
        tags: Marks of the test, to choose it by with ``-m``.
    """

    name: Name | None = None
    description: str = ""
    world: World | None = None
    controller: Word | Arguments | None = None
    recording: RelativePath | RecordingFile | None = None
    seeds: SeedCount | SeedRange | SeedList | None = None
    max_steps: Count | None = None
    limits: ControllerLimits | None = None
    repeat: Repeat | None = None
    variance: Variance | None = None
    deterministic: bool | None = None
    support: Count | None = None
    min_effective_seeds: Count | None = None
    strict: bool | None = None
    unchecked: tuple[MetricName, ...] = ()
    parameters: dict[Identifier, Parameter] = {}
    parameters_seed: Seed = 0
    expect: Expectations = Expectations()
    pass_rate: PassRate | None = None
    better: dict[MetricName, Better] = {}
    baseline: Baseline | None = None
    tags: tuple[Tag, ...] = ()


MARKED = ("max_steps", "repeat", "variance", "deterministic", "support", "min_effective_seeds", "strict")
"""The keys that mean what the marker ``microsim`` has under the same names."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A scenario as read.

    Attributes:
        path: The file, absolute.
        name: The test's name.
        document: What the file says.
        seeds: Its seeds; empty where it has none, so that the test has one of its own.
        limits: The limits that it writes, by name.
        lines: The line of each key that is written, by its dotted path.
    """

    path: Path
    name: str
    document: Document
    seeds: tuple[int, ...]
    limits: Mapping[str, Any]
    lines: Mapping[str, int]

    def line(self, key: str) -> int:
        """Return the line of a key, or of the closest one around it that is written; 1 where there is none."""
        while key and key not in self.lines:
            key = key.rpartition(".")[0]
        return self.lines.get(key, 1)
