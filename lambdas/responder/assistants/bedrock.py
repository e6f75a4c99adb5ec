"""Asks a model on Amazon Bedrock through the Converse API, which is the same for every model."""

from lambdas.responder.assistants.base import Prompt, Reply
from lambdas.responder.errors import CallBusy, CallRefused
from lambdas.responder.http_client import MAX_CONNECT_SECONDS
from message_buffer.aws import clients as aws
from message_buffer.errors import SendFailed
from message_buffer.json_object import Json

# After these errors, another attempt would fail in the same way. AccessDeniedException is not one of them: an account's
# first call of a third party's model begins a subscription, which may take 15 minutes and refuse calls meanwhile.
FINAL_ERRORS = (
    "ValidationException",
    "ParamValidationError",
    "ResourceNotFoundException",
    "ModelErrorException",
)


class Bedrock:
    def answer(self, prompt: Prompt) -> Reply:
        request: Json = {
            "modelId": prompt.model,
            "messages": [{"role": turn.role, "content": [{"text": turn.text}]} for turn in prompt.turns],
            "inferenceConfig": {"maxTokens": prompt.max_reply_tokens},
        }
        if prompt.instructions:
            request["system"] = [{"text": prompt.instructions}]
        try:
            response = _converse(request, seconds=prompt.seconds)
        except SendFailed as error:
            raise (CallRefused if str(error).endswith(FINAL_ERRORS) else CallBusy)(str(error)) from error
        blocks = response.get("output", {}).get("message", {}).get("content", [])
        text = "".join(block.get("text", "") for block in blocks).strip()
        if not text:
            raise CallRefused(f"the model returned no text: {response.get('stopReason')}")
        usage = response.get("usage", {})
        return Reply(text, usage.get("inputTokens", 0), usage.get("outputTokens", 0))


def _converse(request: Json, *, seconds: float) -> Json:
    with aws.errors_as_ours("converse"):
        # The SDK makes one attempt, because the queue decides when to try again.
        client = aws.client("bedrock-runtime", patience=aws.Patience(MAX_CONNECT_SECONDS, seconds, attempts=1))
        response: Json = client.converse(**request)
        return response
