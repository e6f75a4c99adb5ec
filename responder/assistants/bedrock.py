"""Amazon Bedrock, by its Converse API, which is the same for every model."""

from typing import Any, Protocol

from message_buffer.errors import SendFailed
from responder.assistants.base import Prompt, Reply
from responder.errors import Busy, Refused

Json = dict[str, Any]

# As often as they are asked they will say so.
FINAL = (
    "ValidationException",
    "ParamValidationError",
    "AccessDeniedException",
    "ResourceNotFoundException",
    "ModelErrorException",
)


class Converses(Protocol):
    def converse(self, request: Json, *, seconds: float) -> Json: ...


class Bedrock:
    def __init__(self, models: Converses) -> None:
        self._models = models

    def answer(self, prompt: Prompt) -> Reply:
        request: Json = {
            "modelId": prompt.model,
            "messages": [{"role": turn.role, "content": [{"text": turn.text}]} for turn in prompt.turns],
            "inferenceConfig": {"maxTokens": prompt.max_reply_tokens},
        }
        if prompt.instructions:
            request["system"] = [{"text": prompt.instructions}]
        try:
            answer = self._models.converse(request, seconds=prompt.seconds)
        except SendFailed as error:
            raise (Refused if str(error).endswith(FINAL) else Busy)(str(error)) from error
        blocks = answer.get("output", {}).get("message", {}).get("content", [])
        text = "".join(block.get("text", "") for block in blocks).strip()
        if not text:
            raise Refused(f"the model said nothing: {answer.get('stopReason')}")
        usage = answer.get("usage", {})
        return Reply(text, usage.get("inputTokens", 0), usage.get("outputTokens", 0))
