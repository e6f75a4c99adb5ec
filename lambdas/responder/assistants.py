"""The assistants that write a reply. An assistant makes one attempt; the responder may try again later."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from lambdas.responder import trace
from lambdas.responder.errors import CallBusy, CallRefused, PlaceNotFound
from lambdas.responder.history import Turn
from lambdas.responder.http_client import MAX_CONNECT_SECONDS, Http
from message_buffer.aws import clients as aws
from message_buffer.aws.functions import Functions
from message_buffer.errors import SendFailed
from message_buffer.json_object import Json
from message_buffer.messages.conversation_id import ConversationId

# After these errors, another attempt would fail in the same way. AccessDeniedException is not one of them: an account's
# first call of a third party's model begins a subscription, which may take 15 minutes and refuse calls meanwhile.
FINAL_BEDROCK_ERRORS = (
    "ValidationException",
    "ParamValidationError",
    "ResourceNotFoundException",
    "ModelErrorException",
)
# An AI's service may return any text as the status; a log line contains at most this much of it.
MAX_LOGGED_STATUS_CHARACTERS = 20
FUNCTION_REQUEST_VERSION = 1


class Tool(NamedTuple):
    """A tool that an assistant may use at the end of its reply. Its only argument is a text for people. It has no
    result, so the assistant is called once."""

    name: str
    does: str
    argument: str
    meaning: str
    field: str
    """The field of a function's response that has the same effect."""

    @property
    def schema(self) -> Json:
        """Return the JSON schema of the arguments. Amazon Nova accepts no other keys in it."""
        argument = {"type": "string", "description": self.meaning}
        return {"type": "object", "properties": {self.argument: argument}, "required": [self.argument]}


HAND_OFF, FINISH_TASK = "hand_off", "finish_task"
TOOLS = {tool.name: tool for tool in (
    Tool(
        HAND_OFF, "Hand the conversation to a person, who answers from now on. Also tell the customer that you do so.",
        "reason", "Why a person is needed, in one sentence for that person.", "handOff",
    ),
    Tool(
        FINISH_TASK, "Record that the customer's task is done. You will not see this conversation's messages again.",
        "summary", "What was done, in one or two sentences.", "finishTask",
    ),
)}  # fmt: skip


class Prompt(NamedTuple):
    instructions: str
    turns: Sequence[Turn]
    """The first turn is the user's, roles alternate, and the last turn is the question."""
    model: str
    max_reply_tokens: int
    seconds: float
    conversation: ConversationId
    batch_ids: Sequence[str]
    """The batches of the question, oldest first."""
    tools: Sequence[Tool] = ()
    """The tools that a model is offered."""


class Reply(NamedTuple):
    text: str
    input_tokens: int = 0
    output_tokens: int = 0
    tools: Mapping[str, str] = {}
    """The arguments of the tools that the assistant uses."""


class Assistant(Protocol):
    def answer(self, prompt: Prompt) -> Reply:
        """Return the reply, which has a text or uses a tool. Raise CallRefused, CallBusy or CallUnconfirmed."""


class Echo:
    """Repeats the question, for the local stage, and for trying a stage without an AI."""

    def answer(self, prompt: Prompt) -> Reply:
        return Reply(f"You wrote:\n{prompt.turns[-1].text}")


class Bedrock:
    """Asks a model on Amazon Bedrock through the Converse API, which is the same for every model."""

    def answer(self, prompt: Prompt) -> Reply:
        request: Json = {
            "modelId": prompt.model,
            "messages": [{"role": turn.role, "content": [{"text": turn.text}]} for turn in prompt.turns],
            "inferenceConfig": {"maxTokens": prompt.max_reply_tokens},
        }
        if prompt.instructions:
            request["system"] = [{"text": prompt.instructions}]
        if prompt.tools:
            specs = [
                {"name": tool.name, "description": tool.does, "inputSchema": {"json": tool.schema}}
                for tool in prompt.tools
            ]
            request["toolConfig"] = {"tools": [{"toolSpec": spec} for spec in specs]}
        if header := trace.next_header():
            request["requestMetadata"] = header  # only Bedrock's log of invocations shows it
        # The SDK makes one attempt, because the queue decides when to try again.
        patience = aws.Patience(MAX_CONNECT_SECONDS, prompt.seconds, attempts=1)
        try:
            with aws.errors_as_ours("converse"):
                response: Json = aws.client("bedrock-runtime", patience=patience).converse(**request)
        except SendFailed as error:
            raise (CallRefused if str(error).endswith(FINAL_BEDROCK_ERRORS) else CallBusy)(str(error)) from error
        blocks = response.get("output", {}).get("message", {}).get("content", [])
        text = "".join(block.get("text", "") for block in blocks).strip()
        usage = response.get("usage", {})
        used = {block["toolUse"]["name"]: block["toolUse"]["input"] for block in blocks if "toolUse" in block}
        tokens = usage.get("inputTokens", 0), usage.get("outputTokens", 0)
        return reply_of(text, response.get("stopReason"), used, tokens)


class CompatibleService:
    """OpenAI, or another service that has one of its APIs."""

    def __init__(self, http: Http, *, url: str, api_key: str) -> None:
        self._http = http
        self.url = url.rstrip("/")
        self._api_key = api_key

    def ask(self, path: str, request: Json, *, seconds: float, otherwise: str) -> Json:
        """Return the service's response. `otherwise` is the assistant of the other API."""
        headers = {"Authorization": f"Bearer {self._api_key}"}
        try:
            return self._http.post_json(f"{self.url}/{path}", request, headers=headers, seconds=seconds)
        except PlaceNotFound as error:
            # Many services also return this status if they do not have the model.
            hint = f"…/{path} does not exist there: try the assistant {otherwise}, or another model"
            raise CallRefused(f"{error}: {hint}") from None


class OpenAi(CompatibleService):
    """Asks OpenAI's Responses API, or another service that has the same API. The service is asked to store nothing."""

    def answer(self, prompt: Prompt) -> Reply:
        request: Json = {
            "model": prompt.model,
            "input": [{"role": turn.role, "content": turn.text} for turn in prompt.turns],
            "max_output_tokens": prompt.max_reply_tokens,
            "store": False,
        }
        if prompt.instructions:
            request["instructions"] = prompt.instructions
        if prompt.tools:
            request["tools"] = [
                {"type": "function", "name": tool.name, "description": tool.does, "parameters": tool.schema,
                 "strict": False}
                for tool in prompt.tools
            ]  # fmt: skip
        response = self.ask("responses", request, seconds=prompt.seconds, otherwise="chat-completions")
        # The output may also contain reasoning and refusals.
        output = response.get("output") or []
        messages = [item for item in output if item.get("type") == "message"]
        parts = [part for item in messages for part in item["content"] if part.get("type") == "output_text"]
        text = "".join(part["text"] for part in parts).strip()
        usage = response.get("usage") or {}
        used = {item["name"]: arguments_of(item["arguments"]) for item in output if item.get("type") == "function_call"}
        tokens = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
        return reply_of(text, response.get("status"), used, tokens)


class YourFunction:
    """Calls a Lambda function of the stage's owner. docs/responder.md describes its request and its response."""

    def __init__(self, functions: Functions, arn: str) -> None:
        self._functions = functions
        self._arn = arn

    def answer(self, prompt: Prompt) -> Reply:
        *earlier, question = prompt.turns
        request = {
            "version": FUNCTION_REQUEST_VERSION,
            "conversationId": str(prompt.conversation),
            "tenant": prompt.conversation.tenant,
            "turn": {"text": question.text, "batchIds": prompt.batch_ids},
            "history": [{"role": turn.role, "text": turn.text} for turn in earlier],
            "instructions": prompt.instructions,
            **trace.next_header(),
        }
        response = self._functions.call(self._arn, request, response_seconds=prompt.seconds)
        # The response to a time-out may have no type.
        if "errorType" in response or "errorMessage" in response:
            raise CallBusy(f"the function failed: {str(response.get('errorType'))[:MAX_LOGGED_STATUS_CHARACTERS]}")
        text = response.get("text")
        used = {name: response[tool.field] for name, tool in TOOLS.items() if tool.field in response}
        return reply_of(text.strip() if isinstance(text, str) else "", response.get("reason"), used)


def arguments_of(written: Any) -> Any:
    """Return the arguments of a tool, which services write as JSON in a text, and some as an object."""
    try:
        return written if isinstance(written, dict) else json.loads(written)
    except (ValueError, TypeError):
        return {}  # the model was cut off, but what it wants to do is known


def reply_of(text: str, status: object, used: Mapping[str, Any], tokens: tuple[int, int] = (0, 0)) -> Reply:
    """Return the reply. Raise CallRefused if it has neither a text nor a tool of ours."""
    known = [tool for tool in TOOLS.values() if isinstance(used.get(tool.name), dict)]
    tools = {tool.name: str(used[tool.name].get(tool.argument) or "") for tool in known}
    if not text and not tools:
        raise CallRefused(f"the assistant returned no text: {str(status)[:MAX_LOGGED_STATUS_CHARACTERS]}")
    return Reply(text, *tokens, tools)
