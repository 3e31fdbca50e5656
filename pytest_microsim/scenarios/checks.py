"""Checks of a scenario that one value cannot show: each yields what is wrong, and where."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator

from microsim_vm import controllers, reset_options
from microsim_vm.errors import MicrosimError, OptionsError, SeedError
from microsim_vm.templates.checks import Complaint
from microsim_vm.templates.spec import ControllerLimits
from microsim_vm.templates.yaml import Node
from msgspec import UNSET

from .draws import points
from .kinds import check_name
from .passrate import seeds_needed
from .recorded import opened
from .spec import Bound, Normal, Parameter, PassRate
from .values import Values, limits_of, name_of, seeds_of

MOST_POINTS = 1000
"""Most groups of seeds that one file's grids make."""

MOST_TESTS = 100_000
"""Most seeds of all groups that one file makes; pytest would be at it for minutes."""

LEAST_MASS = 1e-3
"""Least share of a normal distribution that its ends may leave: what is outside is drawn again."""


RESERVED = frozenset({"filterwarnings", "microsim", "parametrize", "seeds", "skip", "skipif", "tryfirst", "trylast",
                      "usefixtures", "xfail"})  # fmt: skip
"""Marks that change how a test is run, and so are no tags; pytest's and ours."""


Problem = tuple[Node, Complaint]
Check = Callable[[Values], Iterator[Problem]]


def _name(values: Values) -> Iterator[Problem]:
    if "name" not in values.node.keys:
        try:
            check_name(name_of(values))
        except Complaint as complaint:
            yield values.node, Complaint(f"the file's name: {complaint.what}", "rename it, or write name: ... in it")


def _controller(values: Values) -> Iterator[Problem]:
    given = [key for key in ("controller", "recording") if key in values.node.keys]
    if len(given) != 1:
        what = "a controller and a recording" if given else "neither a controller nor a recording"
        hint = "remove one of them" if given else "write controller: and a file's path"
        yield values.at(*given[1:]), Complaint(f"the scenario has {what}", hint)
        return
    yield from _recording(values)
    controller = values.written.get("controller")
    if controller is None:
        return
    first, words = controllers.split(controller)
    path = values.path.parent / first
    at = values.at("controller")
    if not path.is_file():
        hint = "the path is relative to the scenario's file; a program with arguments is a list: [./drive.sh, --fast]"
        yield at, Complaint(f"there is no controller {path}", hint)
        return
    try:
        controllers.read(path, controllers.kind_of(controller), words)
    except MicrosimError as error:
        yield at, Complaint(error.what, error.hint or error.cause)


def _recording(values: Values) -> Iterator[Problem]:
    recording = values.written.get("recording")
    if recording is None:
        return
    at = values.at("recording")
    path = values.path.parent / (recording if isinstance(recording, str) else recording.file)
    if not path.exists():
        yield at, Complaint(f"there is no recording {path}", "the path is relative to the scenario's file")
        return
    try:
        opened(values.path.parent, recording)
    except MicrosimError as error:
        yield at, Complaint(error.what, error.hint or error.cause)


def _seeds(values: Values) -> Iterator[Problem]:
    written = values.written.get("seeds")
    if isinstance(written, str) and written.strip().isdigit():
        number = written.strip()
        hint = f"write seeds: {number} for so many, or seeds: [{number}] for that one"
        yield values.at("seeds"), Complaint(f'seeds: "{number}" would be the one seed {number}', hint)
        return
    try:
        seeds_of(values)
    except SeedError as error:
        yield values.at("seeds"), Complaint(f"seeds: {error.what}", error.hint or error.cause)


def _limits(values: Values) -> Iterator[Problem]:
    try:
        controllers.limited(ControllerLimits(), limits_of(values))
    except MicrosimError as error:
        yield values.at("limits"), Complaint(error.what, error.cause or error.hint)


def _parameters(values: Values) -> Iterator[Problem]:
    parameters: dict[str, Parameter] = values.written.get("parameters", {})
    for name, parameter in parameters.items():
        at = values.at("parameters", name)
        if len(parameter.written) != 1:
            said = " and ".join(parameter.written) or "nothing"
            yield (
                at,
                Complaint(
                    f"parameter {name} has {said}", f"write exactly one of {', '.join(parameter.__struct_fields__)}"
                ),
            )
            continue
        yield from ((at, complaint) for complaint in _parameter(name, parameter))
    if math.prod(len(each.grid) for each in parameters.values() if each.grid is not None) > MOST_POINTS:
        yield (
            values.at("parameters"),
            Complaint(f"the grids make more than {MOST_POINTS} groups of seeds", "draw some of the parameters instead"),
        )
        return
    named = points(parameters)
    taken: set[str] = set()
    for point in named:
        if point.id in taken:
            yield (
                values.at("parameters"),
                Complaint(f"the grids have {point.id} twice", "write each value of a grid once"),
            )
            return
        taken.add(point.id)
    try:
        seeds = len(seeds_of(values)) or 1
    except SeedError:  # which is reported as such
        return
    if len(named) * seeds > MOST_TESTS:
        yield (
            values.at("parameters"),
            Complaint(
                f"{len(named)} groups of {seeds} seeds are more than {MOST_TESTS} tests",
                "draw some of the parameters instead, or take fewer seeds",
            ),
        )


def _parameter(name: str, parameter: Parameter) -> Iterator[Complaint]:
    bounds = parameter.uniform or parameter.log_uniform or parameter.integers
    if bounds is not None and bounds[0] >= bounds[1]:
        yield Complaint(f"parameter {name} is drawn from {bounds[0]:g} to {bounds[1]:g}", "write the smaller one first")
    if parameter.normal is not None:
        yield from _normal(name, parameter.normal)
    for value in (*(parameter.choice or ()), *(parameter.grid or ()), parameter.value):
        try:
            reset_options.checked({} if value is UNSET else {name: value})
        except OptionsError as error:
            yield Complaint(f"parameter {name}: {error.what}", error.hint or error.cause)
            return


def _normal(name: str, normal: Normal) -> Iterator[Complaint]:
    low = -math.inf if normal.min is None else normal.min
    high = math.inf if normal.max is None else normal.max
    if low >= high:
        yield Complaint(f"parameter {name} has min {low:g} and max {high:g}", "min has to be the smaller one")
        return
    whole = statistics.NormalDist(normal.mean, normal.sd)
    left = (1.0 if math.isinf(high) else whole.cdf(high)) - (0.0 if math.isinf(low) else whole.cdf(low))
    if left < LEAST_MASS:
        yield Complaint(
            f"parameter {name}: min and max leave {left:.2g} of the normal distribution",
            "move mean, or use uniform between the two",
        )


def _expectations(values: Values) -> Iterator[Problem]:
    expect = values.written.get("expect")
    if expect is None:
        return
    bounds: dict[tuple[str, ...], Bound] = {("metrics", name): bound for name, bound in expect.metrics.items()}
    bounds |= {(key,): getattr(expect, key) for key in ("total_reward", "steps") if getattr(expect, key) is not None}
    for keys, bound in bounds.items():
        for complaint in _bound(keys[-1], bound):
            yield values.at("expect", *keys), complaint


def _bound(name: str, bound: Bound) -> Iterator[Complaint]:
    written = [each for each in bound.__struct_fields__ if getattr(bound, each) is not None]
    if not written:
        yield Complaint(f"nothing is expected of {name}", f"write at least one of {', '.join(bound.__struct_fields__)}")
    low, high = bound.between or (-math.inf, math.inf)
    lows = [low, *(each for each in (bound.above, bound.at_least, bound.equals) if each is not None)]
    highs = [high, *(each for each in (bound.below, bound.at_most, bound.equals) if each is not None)]
    least, most = max(lows), min(highs)
    if least > most or (least == most and least in (bound.above, bound.below)):
        yield Complaint(f"no number is what {name} is expected to be", "one of its bounds contradicts another")


def _pass_rate(values: Values) -> Iterator[Problem]:
    rate: PassRate | None = values.written.get("pass_rate")
    if rate is None:
        return
    at = values.at("pass_rate")
    if "seeds" not in values.node.keys:
        yield at, Complaint("pass_rate is written, and seeds is not", "write seeds: and how many")
        return
    needed = seeds_needed(rate)
    if needed is None:
        yield (
            at,
            Complaint(
                "no number of seeds shows that all of them pass",
                "write a share below 1, or by: rate in place of by: bound",
            ),
        )
        return
    try:
        seeds = seeds_of(values)
    except SeedError:  # which is reported as such
        return
    if 0 < len(seeds) < needed:
        yield (
            at,
            Complaint(
                f"{len(seeds)} seeds cannot show a pass rate of {rate.at_least:g} with confidence {rate.confidence:g}, "
                "even if all of them pass",
                f"it takes {needed} seeds or more; or write by: rate, for the share that passed",
            ),
        )


def _contradictions(values: Values) -> Iterator[Problem]:
    for demand, (other, value) in {
        "min_effective_seeds": ("deterministic", True),
        "strict": ("variance", "off"),
    }.items():
        if values.written.get(demand) and values.written.get(other) == value:
            yield (
                values.at(demand),
                Complaint(f"{demand} contradicts {other}, which switches the gates off", "remove one of them"),
            )


def _tags(values: Values) -> Iterator[Problem]:
    tags = values.written.get("tags", ())
    for tag in tags:
        if tag in RESERVED:
            yield values.at("tags"), Complaint(f"tag {tag} is a mark that means something else", "choose another word")
    for tag in sorted({tag for tag in tags if tags.count(tag) > 1}):
        yield values.at("tags"), Complaint(f"tag {tag} is there twice", "write it once")


CHECKS: tuple[Check, ...] = (
    _name,
    _controller,
    _seeds,
    _limits,
    _parameters,
    _expectations,
    _pass_rate,
    _contradictions,
    _tags,
)
