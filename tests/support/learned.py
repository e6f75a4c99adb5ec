"""A small model of the learned wait: a text waits 6 s, and one that ends with a question mark 1 s."""

from message_buffer.rules.learned import NUMBERS, SPANS
from message_buffer.rules.rules_and_defaults import Rules

SLOW_SPAN, QUESTION = 4, SPANS + 11
PRICE = NUMBERS - 1
MODEL = [{SLOW_SPAN: 1.0, QUESTION: -9.0, PRICE: -4.0}.get(at, -9.0 if at < SPANS else 0.0) for at in range(NUMBERS)]
LEARNED = Rules(wait="learned", learned=tuple(MODEL))
