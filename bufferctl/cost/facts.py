"""The input of the model: the prices of AWS's services, and how much of each service the buffer uses."""

import tomllib
from functools import cache
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

HERE = Path(__file__).parent
REGION = "us-east-1"
HOURS = 730
SECONDS = HOURS * 3_600
DAYS = HOURS / 24
MILLION = 1_000_000
GB = 1_000_000_000


class _Fact(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    unit: str


class Price(_Fact):
    price: float = Field(gt=0)
    source: Literal["vendor", "web", "memory"]
    as_of: int | None = None

    @model_validator(mode="after")
    def _dated(self) -> Self:
        if (self.as_of is None) != (self.source == "memory"):
            raise ValueError("a price that was looked up has the year of its source, any other has none")
        return self


class Usage(_Fact):
    value: float = Field(gt=0)
    basis: Literal["measured", "counted", "service", "assumed"]
    note: str


@cache
def prices() -> dict[str, Price]:
    """Return the prices by name, from bufferctl/cost/prices.toml."""
    found = tomllib.loads((HERE / "prices.toml").read_text())
    if found.pop("meta")["region"] != REGION:
        raise ValueError(f"bufferctl/cost/prices.toml must have the prices of {REGION}")
    return {name: Price.model_validate(price) for name, price in found.items()}


@cache
def usages() -> dict[str, Usage]:
    """Return the amounts by name, from bufferctl/cost/usage.toml."""
    found = tomllib.loads((HERE / "usage.toml").read_text())
    return {name: Usage.model_validate(usage) for name, usage in found.items()}


def used(name: str) -> float:
    """Return one amount from bufferctl/cost/usage.toml."""
    return usages()[name].value
