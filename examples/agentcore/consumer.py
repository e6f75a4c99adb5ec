"""A Lambda function that answers the turns of a stage's queue with an agent in AgentCore Runtime; see agent.py."""

import hashlib
import json
import os
from typing import Any
from urllib.request import Request, urlopen

import boto3
from botocore.config import Config

from message_buffer.consumer import turns
from message_buffer.consumer.marks import TableMarks
from message_buffer.consumer.turns import Turn

# InvokeAgentRuntime refuses larger ones.
MAX_PAYLOAD_BYTES = 100_000_000
# The SDK's own limit of 60 s is too short for some turns, and its retries would begin a second turn in the session.
AGENTCORE = boto3.client("bedrock-agentcore", config=Config(read_timeout=240, retries={"total_max_attempts": 1}))
S3 = boto3.client("s3")


def handler(event: dict[str, Any], _context: object) -> dict[str, Any]:
    """Answer what Lambda's mapping delivers. Return the entries that the queue has to deliver again."""
    marks = TableMarks(os.environ["MARKS_TABLE"])
    return turns.handle(event, answer, queue_urls=[os.environ["QUEUE_URL"]], marks=marks)


def answer(turn: Turn) -> None:
    """Answer all batches of the turn with one reply. If this raises an error, the whole turn is delivered again."""
    newest = turn.batches[-1]
    messages = [message for batch in turn.batches for message in messages_of(batch)]
    response = AGENTCORE.invoke_agent_runtime(
        agentRuntimeArn=os.environ["AGENT_ARN"],
        runtimeSessionId=session_id(newest["conversationId"]),
        contentType="application/json",
        payload=payload_of(newest["batchId"], messages),
    )
    reply = json.loads(response["response"].read() or "{}").get("reply")
    if not reply:
        raise RuntimeError("the agent's reply is empty")
    turn.require_hidden()
    send(newest["conversationId"], reply, key=newest["batchId"])


def session_id(conversation: str) -> str:
    """Return 64 characters. AgentCore demands 33 to 256, and a conversation's name may be shorter or longer."""
    return hashlib.sha256(conversation.encode()).hexdigest()


def payload_of(turn: str, messages: list[dict[str, Any]], *, limit: int = MAX_PAYLOAD_BYTES) -> bytes:
    """Return the payload with as many of the newest messages as fit. The content begins with the text."""
    while True:
        text = "\n".join(message["text"] for message in messages).strip()
        files = [each for message in messages for each in message["attachments"]]
        content = [{"text": text or "(no text)"}, *({"text": f"Attached: {json.dumps(each)}"} for each in files)]
        payload = json.dumps({"turn": turn, "content": content}).encode()
        if len(payload) <= limit or len(messages) == 1:
            return payload
        messages = messages[1:]


def messages_of(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the batch's messages, from S3 if they were too large for the queue."""
    if reference := batch.get("messagesRef"):
        stored = S3.get_object(Bucket=reference["bucket"], Key=reference["key"])
        batch = json.load(stored["Body"])
    return list(batch["messages"])


def send(conversation: str, text: str, *, key: str) -> None:
    """Post the reply to your channel, or print it. A turn that is answered twice has the same `key`."""
    reply = json.dumps({"conversation": conversation, "text": text, "key": key})
    print(reply, flush=True)
    if url := os.environ.get("REPLY_URL"):
        urlopen(Request(url, reply.encode(), {"Content-Type": "application/json"}), timeout=20).close()  # noqa: S310
