"""A small model of the learned wait: a text waits 6 s, and one that ends with a question mark 1 s."""

from typing import Any

from message_buffer.rules.learned import NUMBERS, SPANS
from message_buffer.rules.rules_and_defaults import LearnedWait, Rules

SLOW_SPAN, QUESTION = 4, SPANS + 11
NUMBERS_OF_MODEL = tuple({SLOW_SPAN: 1.0, QUESTION: -9.0}.get(at, -9.0 if at < SPANS else 0.0) for at in range(NUMBERS))
MODEL: dict[str, Any] = {"numbers": [*NUMBERS_OF_MODEL], "price": 0.02}
LEARNED = Rules(wait="learned", learned=LearnedWait.model_validate(MODEL))
