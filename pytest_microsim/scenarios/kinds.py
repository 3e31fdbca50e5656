"""What one value of a scenario may be: types with their bounds, and the words for them."""

from __future__ import annotations

import re
from typing import Annotated, Any

from microsim_vm.templates.checks import Complaint, relative_path
from msgspec import Meta

_LARGEST = 1 << 53

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
# pytest calls functions of these names around tests, or reads variables of these names.
_PYTEST_OWN = re.compile(r"(setup|teardown)_(module|function)|(setUp|tearDown)Module|pytest\w*")


def check_name(text: str) -> None:
    """Accept what a test can be called."""
    if not _NAME.fullmatch(text):
        raise Complaint(
            f"{text!r} is no name of a test", "write 1 to 63 of a-z, A-Z, 0-9, - and _, a letter or digit first"
        )
    if _PYTEST_OWN.fullmatch(text):
        raise Complaint(f"{text!r} means something else to pytest", f"write another one, such as scenario-{text}")


Name = Annotated[
    str, Meta(pattern=rf"\A{_NAME.pattern}\Z", description="a name of a test", extra={"check": check_name})
]
World = Annotated[str, Meta(min_length=1, description="a template's name, or the path of its folder")]
Tag = Annotated[
    str, Meta(pattern=r"\A[A-Za-z][A-Za-z0-9_]*\Z", description="letters, digits and _, starting with a letter")
]
Number = Annotated[float, Meta(ge=-1e300, le=1e300, description="a number")]
Positive = Annotated[float, Meta(gt=0, le=1e300, description="a number above 0")]
Whole = Annotated[int, Meta(ge=-_LARGEST, le=_LARGEST, description="a whole number of at most 2**53")]
Count = Annotated[int, Meta(ge=1, le=_LARGEST, description="a whole number, at least 1")]
Seed = Annotated[int, Meta(ge=0, le=(1 << 63) - 1, description="a whole number, 0 or more")]
SeedCount = Annotated[int, Meta(ge=1, le=100_000, description="a number of seeds from 1 to 100000")]
SeedRange = Annotated[str, Meta(min_length=1, description='seeds as in "0:64" or "1,7,9", in quotes')]
SeedList = Annotated[tuple[Seed, ...], Meta(min_length=1, description="a list of seeds")]
Repeat = Annotated[int, Meta(ge=1, le=10, description="a number of runs from 1 to 10")]
Variance = Annotated[str, Meta(pattern=r"\A(fail|warn|off)\Z", description="fail, warn or off")]
Range = Annotated[tuple[Number, ...], Meta(min_length=2, max_length=2, description="two numbers, the smaller first")]
PositiveRange = Annotated[
    tuple[Positive, ...], Meta(min_length=2, max_length=2, description="two numbers above 0, the smaller first")
]
WholeRange = Annotated[
    tuple[Whole, ...], Meta(min_length=2, max_length=2, description="two whole numbers, the smaller first")
]
Values = Annotated[tuple[Any, ...], Meta(min_length=1, max_length=1000, description="a list of 1 to 1000 values")]
Share = Annotated[float, Meta(gt=0, le=1, description="a share, more than 0 and at most 1")]
Confidence = Annotated[float, Meta(ge=0.5, lt=1, description="a number from 0.5 to below 1")]
JudgedBy = Annotated[str, Meta(pattern=r"\A(rate|bound)\Z", description="rate or bound")]
RelativePath = Annotated[str, Meta(extra={"check": relative_path})]
Text = Annotated[str, Meta(min_length=1, description="text")]
Texts = Annotated[tuple[Text, ...], Meta(min_length=1, description="a list of names")]
TimeUnit = Annotated[str, Meta(pattern=r"\A(s|ms|us|ns)\Z", description="s, ms, us or ns")]
By = Annotated[str, Meta(pattern=r"\A(time|step)\Z", description="time or step")]
Hold = Annotated[str, Meta(pattern=r"\A(previous|linear)\Z", description="previous or linear")]
StepSeconds = Annotated[float, Meta(gt=0, le=1e6, description="seconds, more than 0")]
NotNegative = Annotated[float, Meta(ge=0, le=1e300, description="a number, 0 or more")]
Steps = Annotated[int, Meta(ge=0, le=_LARGEST, description="a number of steps, 0 or more")]
Must = Annotated[str, Meta(pattern=r"\A(identical|tolerance)\Z", description="identical or tolerance")]
Better = Annotated[str, Meta(pattern=r"\A(higher|lower)\Z", description="higher or lower")]
ColumnName = Annotated[str, Meta(min_length=1, description="the name of a column")]
MetricName = Annotated[str, Meta(min_length=1, description="the name of a metric")]
