"""The scenarios' file format: what customers do, what happens to the stage, and which events should follow."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from message_buffer.json_object import Json

MAX_TEXT_CHARACTERS = 4_000
MAX_STEPS = 100
MAX_STEP_PAUSE_SECONDS = 60.0
FOLDER = Path(__file__).parent / "scenarios"


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Actor(_Strict):
    platform: str
    account: str
    user: str
    tenant: str | None = None


class ScenarioStep(_Strict):
    after: float = Field(
        ge=0, le=MAX_STEP_PAUSE_SECONDS, description="seconds since the beginning of the previous step"
    )
    after_batch: int = Field(
        default=0, ge=0, description="if not 0, count `after` from the arrival of the batch with this number"
    )
    who: int = Field(default=0, ge=0, description="which customer")
    do: str = Field(description="a kind of customers.KINDS, `resume`, `set_rules`, or an accident")
    text: str = Field(default="", max_length=MAX_TEXT_CHARACTERS)
    rules: Json = Field(default={}, description="for `set_rules`: the rules of the customer's conversation")
    note: str = Field(description="what the page says about the step")


class ExpectedBatch(_Strict):
    who: int = Field(default=0, ge=0)
    messages: int = Field(ge=1)
    reason: str = "silence"
    lane: str = "valkey"


class Scenario(_Strict):
    title: str
    about: str
    warning: str = Field(default="", description="what the page says about an accident before the first step")
    customers: list[Actor] = Field(min_length=1, max_length=2)
    steps: list[ScenarioStep] = Field(min_length=1, max_length=MAX_STEPS)
    batches: list[ExpectedBatch] = Field(description="what is emitted with the preset `customers`, in order")
    events: list[str] = Field(default=[], description="the types of the other events that come, in order")
    result: str = Field(description="a sentence for people: what they should have seen")


def read_scenarios(folder: Path = FOLDER) -> dict[str, Scenario]:
    return {path.stem: Scenario.model_validate_json(path.read_bytes()) for path in sorted(folder.glob("*.json"))}
