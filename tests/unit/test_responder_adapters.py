"""The AIs and the channels, against servers on this machine that speak their documented protocols."""

import json
import logging
import re
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from lambdas.responder import channels, trace
from lambdas.responder.assistants import TOOLS, Assistant, Bedrock, OpenAi, Prompt, Reply, YourFunction
from lambdas.responder.channels import (
    CHANNELS,
    Channel,
    FakeChannel,
    MessengerChannel,
    TelegramChannel,
    TwilioChannel,
    WhatsAppChannel,
    split,
)
from lambdas.responder.chat_completions import ChatCompletions
from lambdas.responder.errors import CallBusy, CallRefused, CallUnconfirmed
from lambdas.responder.history import Turn
from lambdas.responder.http_client import Http
from message_buffer.aws import clients as aws
from message_buffer.aws.functions import Functions
from message_buffer.consumer import turns
from message_buffer.consumer.turns import Entry
from message_buffer.messages.conversation_id import ConversationId
from message_buffer.settings import ResponderOptions
from tests.support.web_server import DRIPPING, RESET, SLOW, WebServer, web_server

# Short, so that the tests of slow servers are quick.
SECONDS = 0.4
TURNS = [Turn("user", "Hey", 1, "b-1"), Turn("assistant", "Hello!", 2, "b-1"), Turn("user", "Where is it?", 3, "b-2")]
# How long a new account's subscription to a model may take.
SUBSCRIPTION_SECONDS = 15 * 60
CONVERSATION = ConversationId("acme", "whatsapp", "106540352242922", "491701234567")
PROMPT = Prompt("Be kind.", TURNS, "a-model", 50, SECONDS, CONVERSATION, ["b-2"])
SECRET = "s3cret-t0ken"
SCHEMAS = Path(__file__).parents[2] / "docs/schema"


@pytest.fixture
def server() -> Iterator[WebServer]:
    with web_server() as server:
        yield server


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "MAX_SEND_SECONDS", SECONDS)


# -- channels --------------------------------------------------------------------------------------

READERS = {
    "whatsapp": CONVERSATION,
    "messenger": ConversationId("acme", "messenger", "page-1", "psid-7"),
    "telegram": ConversationId("acme", "telegram", "bot", "-1001:42"),
    "twilio": ConversationId("acme", "twilio", "whatsapp:14155238886", "491701234567"),
}
ACCEPTED: dict[str, Any] = {
    "whatsapp": {"messaging_product": "whatsapp", "messages": [{"id": "wamid.1"}]},
    "messenger": {"recipient_id": "psid-7", "message_id": "m_1"},
    "telegram": {"ok": True, "result": {"message_id": 1}},
    "twilio": {"sid": "SM1", "status": "queued"},
}
ID_OF_THE_PART = {"whatsapp": "wamid.1", "messenger": "m_1", "telegram": "1", "twilio": "SM1"}


def channel(name: str, server: WebServer) -> Channel:
    match name:
        case "whatsapp":
            return WhatsAppChannel(Http(), {"accessToken": SECRET}, url=server.url)
        case "messenger":
            return MessengerChannel(Http(), {"pageToken": SECRET}, url=server.url)
        case "telegram":
            return TelegramChannel(Http(), {"botToken": SECRET}, url=server.url)
    credentials = {"accountSid": "AC1", "authToken": SECRET}
    return TwilioChannel(Http(), credentials, url=server.url, typing_url=server.url)


BEARER = f"Bearer {SECRET}"
BASIC = f"Basic {b64encode(f'AC1:{SECRET}'.encode()).decode()}"
TEXT = "It left today, größer 🎁"
SENT: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "whatsapp": (
        "/106540352242922/messages",
        BEARER,
        {"messaging_product": "whatsapp", "recipient_type": "individual", "to": "491701234567", "type": "text",
         "text": {"body": TEXT}},
    ),
    "messenger": (
        "/page-1/messages",
        BEARER,
        {"recipient": {"id": "psid-7"}, "messaging_type": "RESPONSE", "message": {"text": TEXT}},
    ),
    "telegram": (f"/bot{SECRET}/sendMessage", None, {"chat_id": "-1001", "message_thread_id": 42, "text": TEXT}),
    "twilio": (
        "/2010-04-01/Accounts/AC1/Messages.json",
        BASIC,
        {"From": "whatsapp:+14155238886", "To": "whatsapp:+491701234567", "Body": TEXT},
    ),
}  # fmt: skip
TYPING: dict[str, tuple[str, dict[str, Any]]] = {
    "whatsapp": (
        "/106540352242922/messages",
        {"messaging_product": "whatsapp", "status": "read", "message_id": "m-1", "typing_indicator": {"type": "text"}},
    ),
    "messenger": ("/page-1/messages", {"recipient": {"id": "psid-7"}, "sender_action": "typing_on"}),
    "telegram": (
        f"/bot{SECRET}/sendChatAction", {"chat_id": "-1001", "message_thread_id": 42, "action": "typing"},
    ),
    "twilio": ("/v2/Indicators/Typing.json", {"messageId": "m-1", "channel": "whatsapp"}),
}  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_a_text_is_sent_as_the_provider_documents_it(name: str, server: WebServer) -> None:
    server.answer = (200, ACCEPTED[name])
    assert channel(name, server).send(READERS[name], TEXT) == ID_OF_THE_PART[name]
    (request,) = server.requests
    path, authorization, fields = SENT[name]
    assert (request.path, request.headers.get("Authorization")) == (path, authorization)
    assert (request.form if name == "twilio" else request.json) == fields


def test_twilio_is_told_where_to_report_a_failed_delivery(server: WebServer) -> None:
    server.answer = (200, ACCEPTED["twilio"])
    hook = "https://hooks.example.com/webhook/twilio"
    credentials = {"accountSid": "AC1", "authToken": SECRET, "statusCallback": hook}
    TwilioChannel(Http(), credentials, url=server.url, typing_url=server.url).send(READERS["twilio"], TEXT)
    (request,) = server.requests
    assert request.form == SENT["twilio"][2] | {"StatusCallback": hook}


def test_an_id_of_whatsapp_is_sent_unchanged_in_its_own_field(server: WebServer) -> None:
    server.answer = (200, ACCEPTED["whatsapp"])
    channel("whatsapp", server).send(READERS["whatsapp"]._replace(user="DE.aBc1"), TEXT)
    (request,) = server.requests
    assert request.json == {
        "messaging_product": "whatsapp", "recipient_type": "individual", "recipient": "DE.aBc1", "type": "text",
        "text": {"body": TEXT},
    }  # fmt: skip


@pytest.mark.parametrize("name", READERS)
def test_typing_is_shown_as_the_provider_documents_it(name: str, server: WebServer) -> None:
    channel(name, server).show_typing(READERS[name], "m-1")
    (request,) = server.requests
    path, fields = TYPING[name]
    assert request.path == path
    assert (request.form if name == "twilio" else request.json) == fields


def test_sms_goes_from_number_to_number_and_shows_no_typing(server: WebServer) -> None:
    to = ConversationId("acme", "twilio", "15558675310", "491701234567")
    sms = channel("twilio", server)
    sms.send(to, TEXT)
    sms.show_typing(to, "m-1")
    (request,) = server.requests
    assert request.form == {"From": "+15558675310", "To": "+491701234567", "Body": TEXT}


OUTCOMES: list[tuple[Any, type[Exception]]] = [
    ((400, {"error": {"code": 100}}), CallRefused),
    ((404, {}), CallRefused),
    ((429, {"error": {"code": 613}}), CallBusy),
    ((503, b"<html>"), CallBusy),
    ((500, {}), CallUnconfirmed),
    ((504, {}), CallUnconfirmed),
    (SLOW, CallUnconfirmed),
    (DRIPPING, CallUnconfirmed),
    (RESET, CallUnconfirmed),
]
IDS = [str(answer[0]) if isinstance(answer, tuple) else answer for answer, _ in OUTCOMES]


@pytest.mark.parametrize(("answer", "error"), OUTCOMES, ids=IDS)
def test_a_send_is_made_once_whatever_comes_of_it(answer: Any, error: type[Exception], server: WebServer) -> None:
    server.answer = answer
    with pytest.raises(error) as raised:
        channel("telegram", server).send(READERS["telegram"], TEXT)
    server.wait_until_asked()
    assert len(server.requests) == 1
    assert SECRET not in str(raised.value)
    assert raised.value.__cause__ is None, "what urllib3 says of it has the URL in it"


def test_without_a_connection_nothing_was_sent(server: WebServer) -> None:
    server.close()
    with pytest.raises(CallBusy):
        channel("twilio", server).send(READERS["twilio"], TEXT)


@pytest.mark.parametrize("name", READERS)
def test_without_its_credentials_a_channel_says_which_are_missing(name: str) -> None:
    with pytest.raises(CallRefused, match="secret has no"):
        CHANNELS[name](Http(), {})


@pytest.mark.parametrize("token", ["with a\nline end", "with a ☂"])
@pytest.mark.parametrize("name", ["whatsapp", "messenger"])
def test_a_key_that_no_header_can_have_is_refused_and_not_quoted(name: str, token: str, server: WebServer) -> None:
    make: Any = {"whatsapp": WhatsAppChannel, "messenger": MessengerChannel}[name]
    with pytest.raises(CallRefused) as raised:
        make(Http(), {"accessToken": token, "pageToken": token}, url=server.url).send(READERS[name], TEXT)
    assert "with a" not in str(raised.value)
    assert not server.requests


@pytest.mark.parametrize("name", ["whatsapp", "messenger"])
def test_an_account_cannot_lead_to_another_place_of_the_provider(name: str, server: WebServer) -> None:
    channel(name, server).send(ConversationId("acme", name, "../me?x=", "7"), TEXT)
    assert server.requests[0].path == "/..%2Fme%3Fx%3D/messages"


def test_a_redirect_is_not_followed_with_the_credentials(server: WebServer) -> None:
    server.answer = (302, {})
    with pytest.raises(CallRefused):
        channel("whatsapp", server).send(READERS["whatsapp"], TEXT)
    assert len(server.requests) == 1


def test_the_fake_channel_gives_each_part_an_id_of_its_own() -> None:
    ids = {FakeChannel().send(READERS["whatsapp"], TEXT) for _ in range(2)}
    assert len(ids) == 2
    assert all(ids)


@pytest.mark.parametrize(
    "answer", [b"OK", {}, {"messages": []}, {"messages": [{"id": None}]}, {"messages": [{"id": "x" * 257}]}]
)
def test_a_part_was_sent_even_if_the_response_has_no_id(answer: Any, server: WebServer) -> None:
    server.answer = (200, answer)
    assert channel("whatsapp", server).send(READERS["whatsapp"], TEXT) == ""


# -- the trace -------------------------------------------------------------------------------------

TRACE, SPAN = "4b" * 16, "f0" * 8


@pytest.fixture
def _traced() -> Iterator[None]:
    trace.follow(f"00-{TRACE}-{SPAN}-01")
    yield
    trace.follow(None)


def carried_on(header: str) -> str:
    """Return the span of a header that carries the trace on."""
    version, of, span, flags = header.split("-")
    assert (version, of, flags, len(span)) == ("00", TRACE, "01", len(SPAN))
    return span


@pytest.mark.usefixtures("_traced")
@pytest.mark.parametrize("name", READERS)
def test_each_call_of_a_channel_carries_the_trace_on_with_a_span_of_its_own(name: str, server: WebServer) -> None:
    for _ in range(2):
        channel(name, server).send(READERS[name], TEXT)
    spans = {carried_on(request.headers["traceparent"]) for request in server.requests}
    assert len(spans | {SPAN}) == 3


@pytest.mark.usefixtures("_traced")
def test_an_ai_gets_the_trace(server: WebServer, assistant: Callable[[str], Assistant]) -> None:
    server.answer = (200, OPENAI_ANSWER)
    assistant("openai").answer(PROMPT)
    server.answer = (200, BEDROCK_ANSWER)
    assistant("bedrock").answer(PROMPT)
    server.answer = (200, CHAT_ANSWER)
    assistant("chat-completions").answer(PROMPT)
    by_openai, by_bedrock, by_chat = server.requests
    assert carried_on(by_openai.headers["traceparent"])
    assert carried_on(by_chat.headers["traceparent"])
    assert carried_on(by_bedrock.json["requestMetadata"]["traceparent"])
    functions = FakeFunctions({"text": "It left today."})
    YourFunction(functions, "arn").answer(PROMPT)
    assert carried_on(functions.calls[0][1]["traceparent"])


@pytest.mark.parametrize("traceparent", [None, 7, "", "00-4b-f0-01", f"00-{TRACE}-{SPAN}-01\nX: y"])
def test_a_call_without_a_valid_trace_has_no_header(traceparent: object, server: WebServer) -> None:
    trace.follow(traceparent)
    channel("telegram", server).send(READERS["telegram"], TEXT)
    assert "traceparent" not in server.requests[0].headers


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("short", ["short"]),
        ("one paragraph\n\nand another", ["one paragraph", "and another"]),
        ("words that have to be broken", ["words that have to", "be broken"]),
        ("x" * 45, ["x" * 20, "x" * 20, "x" * 5]),
    ],
)
def test_a_long_reply_is_split_where_a_reader_would_not_mind(text: str, parts: list[str]) -> None:
    assert split(text, 20) == parts


# -- assistants ------------------------------------------------------------------------------------

OPENAI_ANSWER = {
    "status": "completed",
    "output": [
        {"type": "reasoning", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It left today."}]},
    ],
    "usage": {"input_tokens": 30, "output_tokens": 5},
}
CHAT_ANSWER = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "It left today."}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 30, "completion_tokens": 5, "total_tokens": 35},
}
BEDROCK_ANSWER = {
    "output": {"message": {"role": "assistant", "content": [{"text": "It left today."}]}},
    "stopReason": "end_turn",
    "usage": {"inputTokens": 30, "outputTokens": 5, "totalTokens": 35},
    "metrics": {"latencyMs": 1},
}


@pytest.fixture
def assistant(server: WebServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Assistant]]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": server.url,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    aws._made.cache_clear()
    made: dict[str, Callable[[], Assistant]] = {
        "bedrock": Bedrock,
        "openai": lambda: OpenAi(Http(), url=f"{server.url}/v1", api_key=SECRET),
        "chat-completions": lambda: ChatCompletions(Http(), url=f"{server.url}/v1/", api_key=SECRET),
    }
    yield lambda name: made[name]()
    aws._made.cache_clear()


def test_openai_is_asked_by_its_responses_api_and_keeps_nothing(
    server: WebServer, assistant: Callable[[str], Assistant]
) -> None:
    server.answer = (200, OPENAI_ANSWER)
    assert assistant("openai").answer(PROMPT) == Reply("It left today.", 30, 5)
    (request,) = server.requests
    assert (request.path, request.headers["Authorization"]) == ("/v1/responses", BEARER)
    assert request.json == {
        "model": "a-model",
        "instructions": "Be kind.",
        "input": [{"role": turn.role, "content": turn.text} for turn in TURNS],
        "max_output_tokens": 50,
        "store": False,
    }


def test_a_compatible_service_is_asked_by_chat_completions(
    server: WebServer, assistant: Callable[[str], Assistant]
) -> None:
    server.answer = (200, CHAT_ANSWER)
    assert assistant("chat-completions").answer(PROMPT) == Reply("It left today.", 30, 5)
    (request,) = server.requests
    assert (request.path, request.headers["Authorization"]) == ("/v1/chat/completions", BEARER)
    said = [{"role": turn.role, "content": turn.text} for turn in TURNS]
    assert request.json == {
        "model": "a-model",
        "messages": [{"role": "system", "content": "Be kind."}, *said],
        "max_tokens": 50,
    }, "Mistral refuses fields that it does not know"


@pytest.mark.parametrize("url", ["https://api.openai.com/v1", "https://shop.openai.azure.com/openai/v1/"])
def test_openai_itself_gets_the_limit_that_its_new_models_accept_and_keeps_nothing(url: str) -> None:
    posted: list[dict[str, Any]] = []

    class Recording(Http):
        def post_json(self, url: str, value: Any, **_: Any) -> Any:
            posted.append(value)
            return CHAT_ANSWER

    ChatCompletions(Recording(), url=url, api_key=SECRET).answer(PROMPT._replace(instructions=""))
    (request,) = posted
    assert request.keys() == {"model", "messages", "max_completion_tokens", "store"}
    assert (request["max_completion_tokens"], request["store"]) == (50, False)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("<think>\nIt is late.\n</think>\n\nHello.", "Hello."),
        ("It is late.\n</think>Hello.", "Hello."),
        ([{"type": "thinking", "thinking": []}, {"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}],
         "Hello."),
    ],
)  # fmt: skip
def test_the_customer_does_not_get_what_the_model_thinks(
    content: Any, text: str, server: WebServer, assistant: Callable[[str], Assistant]
) -> None:
    server.answer = (200, {"choices": [{"message": {"content": content}}], "usage": None})
    assert assistant("chat-completions").answer(PROMPT) == Reply(text)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("openai", "status 404: …/responses does not exist there: try the assistant chat-completions"),
        ("chat-completions", "status 404: …/chat/completions does not exist there: try the assistant openai"),
    ],
)
def test_a_service_without_the_api_is_refused_with_the_name_of_the_other(
    name: str, reason: str, server: WebServer, assistant: Callable[[str], Assistant]
) -> None:
    server.answer = (404, {"detail": "Not Found"})
    with pytest.raises(CallRefused, match=re.escape(reason)):
        assistant(name).answer(PROMPT)


def test_bedrock_is_asked_by_its_converse_api(server: WebServer, assistant: Callable[[str], Assistant]) -> None:
    server.answer = (200, BEDROCK_ANSWER)
    assert assistant("bedrock").answer(PROMPT) == Reply("It left today.", 30, 5)
    (request,) = server.requests
    assert request.path == "/model/a-model/converse"
    assert "AWS4-HMAC-SHA256" in request.headers["Authorization"]
    assert request.json == {
        "messages": [{"role": turn.role, "content": [{"text": turn.text}]} for turn in TURNS],
        "system": [{"text": "Be kind."}],
        "inferenceConfig": {"maxTokens": 50},
    }


@pytest.mark.parametrize(
    ("answer", "is_final"),
    [
        ((400, {"__type": "ValidationException"}), True),
        ((429, {"__type": "ThrottlingException"}), False),
        ((500, {"__type": "InternalServerException"}), False),
        ((503, {"__type": "ServiceUnavailableException"}), False),
        (SLOW, False),
        (RESET, False),
    ],
)
@pytest.mark.parametrize("name", ["bedrock", "openai", "chat-completions"])
def test_an_ai_is_asked_once_and_again_only_by_the_queue(
    name: str, answer: Any, is_final: bool, server: WebServer, assistant: Callable[[str], Assistant]
) -> None:
    server.answer = answer
    with pytest.raises((CallRefused, CallBusy, CallUnconfirmed)) as raised:
        assistant(name).answer(PROMPT)
    assert raised.value.retryable is not is_final
    server.wait_until_asked()
    assert len(server.requests) == 1
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("chat-completions", {"choices": []}),
        ("chat-completions", {"choices": [{"message": {"content": None, "refusal": "No."}, "finish_reason": "stop"}]}),
        ("chat-completions", {"choices": [{"message": {"content": "<think>I", "refusal": None}}]}),
        ("openai", {"status": "incomplete", "output": []}),
        ("openai", {"status": "completed", "output": [{"type": "message", "content": [{"type": "refusal"}]}]}),
        ("bedrock", {**BEDROCK_ANSWER, "output": {"message": {"role": "assistant", "content": []}}}),
    ],
)
def test_an_empty_answer_is_refused(
    name: str, answer: Any, server: WebServer, assistant: Callable[[str], Assistant]
) -> None:
    server.answer = (200, answer)
    with pytest.raises(CallRefused, match="returned no text"):
        assistant(name).answer(PROMPT)


OFFERED = PROMPT._replace(tools=list(TOOLS.values()))
REASON = {
    "type": "object",
    "properties": {"reason": {"type": "string", "description": TOOLS["hand_off"].meaning}},
    "required": ["reason"],
}


def with_tools(name: str, text: str, **used: Any) -> dict[str, Any]:
    """Return the service's documented response with a text, if any, and uses of tools."""
    if name == "bedrock":
        blocks: list[Any] = [{"text": text}] if text else []
        blocks += [{"toolUse": {"toolUseId": "t-1", "name": tool, "input": each}} for tool, each in used.items()]
        return {**BEDROCK_ANSWER, "output": {"message": {"role": "assistant", "content": blocks}}}
    if name == "chat-completions":
        functions = [{"name": tool, "arguments": each if isinstance(each, str) else json.dumps(each)}
                     for tool, each in used.items()]  # fmt: skip
        called = [{"id": "c-1", "type": "function", "function": each} for each in functions]
        message = {"role": "assistant", "content": text or None, "tool_calls": called}
        return {**CHAT_ANSWER, "choices": [{"message": message, "finish_reason": "tool_calls"}]}
    calls = [{"type": "function_call", "call_id": "c-1", "name": tool, "arguments": each if isinstance(each, str)
              else json.dumps(each)} for tool, each in used.items()]  # fmt: skip
    said = [{"type": "message", "content": [{"type": "output_text", "text": text}]}] if text else []
    return {**OPENAI_ANSWER, "output": [*said, *calls]}


def test_a_model_is_offered_the_stages_tools(server: WebServer, assistant: Callable[[str], Assistant]) -> None:
    description = TOOLS["hand_off"].does
    server.answer = (200, OPENAI_ANSWER)
    assistant("openai").answer(OFFERED)
    server.answer = (200, BEDROCK_ANSWER)
    assistant("bedrock").answer(OFFERED)
    server.answer = (200, CHAT_ANSWER)
    assistant("chat-completions").answer(OFFERED)
    of_openai, of_bedrock, of_chat = (request.json for request in server.requests)
    assert len(of_chat["tools"]) == 2
    assert of_chat["tools"][0] == {
        "type": "function", "function": {"name": "hand_off", "description": description, "parameters": REASON},
    }  # fmt: skip
    assert [tool["name"] for tool in of_openai["tools"]] == ["hand_off", "finish_task"]
    assert of_openai["tools"][0] == {
        "type": "function", "name": "hand_off", "description": description, "parameters": REASON, "strict": False,
    }  # fmt: skip
    assert len(of_bedrock["toolConfig"]["tools"]) == 2
    assert of_bedrock["toolConfig"]["tools"][0] == {
        "toolSpec": {"name": "hand_off", "description": description, "inputSchema": {"json": REASON}}
    }


@pytest.mark.parametrize(
    ("text", "used", "tools"),
    [
        ("A person comes.", {"hand_off": {"reason": "a refund"}}, {"hand_off": "a refund"}),
        ("", {"finish_task": {"summary": "asked"}}, {"finish_task": "asked"}),
        ("", {"hand_off": {"reason": "r"}, "finish_task": {}}, {"hand_off": "r", "finish_task": ""}),
        ("Hey", {"hand_off": {"reason": None}, "another": {}}, {"hand_off": ""}),
    ],
)
@pytest.mark.parametrize("name", ["bedrock", "openai", "chat-completions"])
def test_a_model_uses_tools_with_or_without_a_text(
    name: str, text: str, used: Any, tools: Any, server: WebServer, assistant: Callable[[str], Assistant]
) -> None:
    server.answer = (200, with_tools(name, text, **used))
    assert assistant(name).answer(OFFERED) == Reply(text, 30, 5, tools)


@pytest.mark.parametrize("name", ["openai", "chat-completions"])
def test_a_call_that_was_cut_off_hands_the_conversation_off_all_the_same(
    name: str, server: WebServer, assistant: Callable[[str], Assistant]
) -> None:
    server.answer = (200, with_tools(name, "", hand_off='{"reason": "a re'))
    assert assistant(name).answer(OFFERED).tools == {"hand_off": ""}


class FakeFunctions(Functions):
    def __init__(self, response: dict[str, Any]) -> None:
        super().__init__()
        self.response = response
        self.calls: list[Any] = []

    def call(self, function: str, payload: Any, *, response_seconds: float) -> dict[str, Any]:
        self.calls.append((function, json.loads(json.dumps(payload)), response_seconds))
        return self.response


def test_a_function_gets_the_turn_and_the_history_and_returns_the_text() -> None:
    functions = FakeFunctions({"text": " It left today. "})
    assert YourFunction(functions, "arn:aws:lambda:1").answer(PROMPT).text == "It left today."
    request = {
        "version": 1,
        "conversationId": str(CONVERSATION),
        "tenant": "acme",
        "turn": {"text": "Where is it?", "batchIds": ["b-2"]},
        "history": [{"role": "user", "text": "Hey"}, {"role": "assistant", "text": "Hello!"}],
        "instructions": "Be kind.",
    }
    assert functions.calls == [("arn:aws:lambda:1", request, SECONDS)]


def test_a_function_hands_the_conversation_off_or_finishes_its_task_by_a_field() -> None:
    response = {"text": "Bye.", "handOff": {"reason": "a refund"}, "finishTask": {"summary": "asked"}}
    reply = YourFunction(FakeFunctions(response), "arn").answer(PROMPT)
    assert reply == Reply("Bye.", tools={"hand_off": "a refund", "finish_task": "asked"})
    assert YourFunction(FakeFunctions({"handOff": {}}), "arn").answer(PROMPT) == Reply("", tools={"hand_off": ""})


class DocumentedFunction(Functions):
    """Runs the function that docs/responder.md shows, with a model that repeats its prompt, and one order."""

    def call(self, function: str, payload: Any, *, response_seconds: float) -> dict[str, Any]:
        def converse(*, system: Any, messages: Any, **_: object) -> dict[str, Any]:
            said = [system[0]["text"], *(f"{each['role']}: {each['content'][0]['text']}" for each in messages)]
            return {"output": {"message": {"content": [{"text": "\n".join(said)}]}}}

        table = SimpleNamespace(get_item=lambda *, Key: {"Item": Key | {"state": "sent"}})  # noqa: N803 - the name in the SDK
        sdk = SimpleNamespace(
            client=lambda _name: SimpleNamespace(converse=converse),
            resource=lambda _name: SimpleNamespace(Table=lambda _name: table),
        )
        page = (SCHEMAS.parent / "responder.md").read_text("utf-8")
        program, names = page.partition("```python\n")[2].partition("```")[0], dict[str, Any]()
        with patch.dict(sys.modules, {"boto3": sdk}):
            exec(program, names)  # noqa: S102 - the page is ours
        answer: dict[str, Any] = names["handler"](json.loads(json.dumps(payload)), None)
        return answer


def test_the_function_on_the_page_answers_a_turn() -> None:
    asked = PROMPT._replace(turns=[*TURNS[:2], TURNS[2]._replace(text="Where is #123?")])
    assert YourFunction(DocumentedFunction(), "arn").answer(asked).text.splitlines() == [
        "Be kind.",
        "The order #123: {'tenant': 'acme', 'number': '123', 'state': 'sent'}",
        "user: Hey",
        "assistant: Hello!",
        "user: Where is #123?",
    ]


@pytest.mark.parametrize(
    ("response", "error", "reason"),
    [
        ({"errorType": "ValueError", "errorMessage": "a secret word"}, CallBusy, "ValueError"),
        ({"errorMessage": "2026-02-14T12:00:00Z b1 Task timed out after 30.00 seconds"}, CallBusy, "None"),
        ({"text": " ", "reason": "not allowed"}, CallRefused, "not allowed"),
        ({}, CallRefused, "None"),
        ({"text": ["?"]}, CallRefused, "None"),
        ({"handOff": "now", "finishTask": None}, CallRefused, "None"),
    ],
)
def test_a_function_that_fails_is_called_again_and_one_without_a_text_refuses(
    response: dict[str, Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=f": {reason}$"):
        YourFunction(FakeFunctions(response), "arn:aws:lambda:1").answer(PROMPT)


# -- what is not logged ----------------------------------------------------------------------------


def test_urllib3_writes_no_url_to_a_log_whatever_the_level(server: WebServer, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        channel("telegram", server).send(READERS["telegram"], TEXT)
    assert SECRET not in caplog.text


def test_an_answer_without_an_end_is_given_up(server: WebServer) -> None:
    server.answer = (200, b" " * 5_000_000)
    with pytest.raises(CallUnconfirmed, match="too long"):
        Http().post(server.url, b"{}", headers={}, seconds=10)


def test_each_send_has_a_connection_of_its_own(server: WebServer) -> None:
    http = Http()
    for _ in range(2):
        WhatsAppChannel(http, {"accessToken": SECRET}, url=server.url).send(READERS["whatsapp"], TEXT)
    assert len({request.port for request in server.requests}) == 2


@pytest.mark.parametrize(("name", "is_final"), [("bedrock", False), ("openai", True)])
def test_a_model_that_the_account_may_not_use_yet_is_asked_again_for_longer_than_a_subscription_takes(
    name: str, is_final: bool, server: WebServer, assistant: Callable[[str], Assistant]
) -> None:
    server.answer = (403, {"__type": "AccessDeniedException"})
    with pytest.raises(CallRefused if is_final else CallBusy):
        assistant(name).answer(PROMPT)
    attempts = ResponderOptions._field_defaults["max_attempts"]
    pauses = [turns.Turn([Entry("", "", "", "", "", n, 0)]).pause_seconds for n in range(1, attempts)]
    assert sum(pauses) > SUBSCRIPTION_SECONDS
