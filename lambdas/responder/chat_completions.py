"""The assistant of services with OpenAI's older API, Chat Completions, which is the only one that most of them have."""

from typing import Any
from urllib.parse import urlsplit

from lambdas.responder.assistants import CompatibleService, Prompt, Reply, arguments_of, reply_of
from message_buffer.json_object import Json

# New models of OpenAI refuse `max_tokens`. Compatible services know it, but Mistral refuses `max_completion_tokens` and
# `store`, and Ollama ignores `max_completion_tokens`.
HOSTS_OF_OPENAI = (".openai.com", ".openai.azure.com")
# A server that is not configured for a model's format leaves the model's thoughts in the text.
THOUGHTS, END_OF_THOUGHTS = "<think>", "</think>"


class ChatCompletions(CompatibleService):
    def answer(self, prompt: Prompt) -> Reply:
        messages = [{"role": turn.role, "content": turn.text} for turn in prompt.turns]
        if prompt.instructions:
            messages.insert(0, {"role": "system", "content": prompt.instructions})
        request: Json = {"model": prompt.model, "messages": messages}
        if (urlsplit(self.url).hostname or "").endswith(HOSTS_OF_OPENAI):
            request |= {"max_completion_tokens": prompt.max_reply_tokens, "store": False}
        else:
            request["max_tokens"] = prompt.max_reply_tokens
        if prompt.tools:
            functions = [
                {"name": tool.name, "description": tool.does, "parameters": tool.schema} for tool in prompt.tools
            ]
            request["tools"] = [{"type": "function", "function": function} for function in functions]
        response = self.ask("chat/completions", request, seconds=prompt.seconds, otherwise="openai")
        choice: Json = next(iter(response.get("choices") or ()), {})
        message, usage = choice.get("message") or {}, response.get("usage") or {}
        called = [call["function"] for call in message.get("tool_calls") or ()]
        used = {function["name"]: arguments_of(function["arguments"]) for function in called}
        tokens = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
        status = "refusal" if message.get("refusal") else choice.get("finish_reason")
        return reply_of(_text_of(message.get("content")), status, used, tokens)


def _text_of(content: Any) -> str:
    """Return the words for the customer. Mistral's models that think return a list of parts."""
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type") == "text")
    text = (content or "").rpartition(END_OF_THOUGHTS)[2].strip()
    return "" if text.startswith(THOUGHTS) else text  # the model was cut off before it had an answer
