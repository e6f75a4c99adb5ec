"""Repeats the question, for the local stage, and for trying a stage without an AI."""

from lambdas.responder.assistants.base import Prompt, Reply


class Echo:
    def answer(self, prompt: Prompt) -> Reply:
        return Reply(f"You wrote:\n{prompt.turns[-1].text}")
