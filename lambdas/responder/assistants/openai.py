"""Asks OpenAI's Responses API, or another service that has the same API. The service is asked to store nothing."""

from lambdas.responder.assistants.base import Prompt, Reply
from lambdas.responder.errors import CallRefused
from lambdas.responder.http_client import Http
from message_buffer.json_object import Json

# An AI's service may return any text as the status; a log line contains at most this much of it.
MAX_LOGGED_STATUS_CHARACTERS = 20


class OpenAi:
    def __init__(self, http: Http, *, url: str, api_key: str) -> None:
        self._http = http
        self._url = f"{url.rstrip('/')}/responses"
        self._api_key = api_key

    def answer(self, prompt: Prompt) -> Reply:
        request: Json = {
            "model": prompt.model,
            "input": [{"role": turn.role, "content": turn.text} for turn in prompt.turns],
            "max_output_tokens": prompt.max_reply_tokens,
            "store": False,
        }
        if prompt.instructions:
            request["instructions"] = prompt.instructions
        headers = {"Authorization": f"Bearer {self._api_key}"}
        response = self._http.post_json(self._url, request, headers=headers, seconds=prompt.seconds)
        text = "".join(_texts(response)).strip()
        if not text:
            raise CallRefused(
                f"the model returned no text: {str(response.get('status'))[:MAX_LOGGED_STATUS_CHARACTERS]}"
            )
        usage = response.get("usage") or {}
        return Reply(text, usage.get("input_tokens", 0), usage.get("output_tokens", 0))


def _texts(response: Json) -> list[str]:
    """Return the texts of the messages. The output may also contain reasoning, tool calls and refusals."""
    messages = [item for item in response.get("output") or [] if item.get("type") == "message"]
    return [part["text"] for item in messages for part in item["content"] if part.get("type") == "output_text"]
