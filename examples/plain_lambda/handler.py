"""Answer a queue's turns with a model on Bedrock. Replace `ask` by your agent, and `send` by your channel."""

import json
import os
from typing import Any
from urllib.request import Request, urlopen

import boto3
from botocore.config import Config

from message_buffer.aws.functions import Functions
from message_buffer.consumer import turns
from message_buffer.consumer.marks import TableMarks
from message_buffer.consumer.turns import Turn

# The SDK's own limit of 60 s is too short for some answers, and its retries would ask again without a word.
BEDROCK = boto3.client("bedrock-runtime", config=Config(read_timeout=240, retries={"total_max_attempts": 1}))
S3 = boto3.client("s3")


def handler(event: dict[str, Any], _context: object) -> dict[str, Any]:
    """Answer what Lambda's mapping delivers. Return the entries that the queue has to deliver again."""
    marks = TableMarks(os.environ["MARKS_TABLE"])
    return turns.handle(event, answer, queue_urls=[os.environ["QUEUE_URL"]], marks=marks)


def answer(turn: Turn) -> None:
    """Answer all batches of the turn with one reply. If this raises an error, the whole turn is delivered again."""
    newest = turn.batches[-1]
    if is_on_hold(newest):
        return  # a person answers
    reply = ask("\n".join(text_of(batch) for batch in turn.batches))
    if not is_on_hold(newest):
        turn.require_hidden()
        send(newest["conversationId"], reply, key=newest["batchId"])


def text_of(batch: dict[str, Any]) -> str:
    """Return what the customer wrote, from S3 if it was too large for the queue."""
    if reference := batch.get("messagesRef"):
        stored = S3.get_object(Bucket=reference["bucket"], Key=reference["key"])
        batch = json.load(stored["Body"])
    return str(batch["text"]).strip() or "(no text)"  # Bedrock refuses a blank text


def is_on_hold(batch: dict[str, Any]) -> bool:
    """Return whether a person, or another consumer, has the conversation. Raise KeyError if the gate fails."""
    question = {"operation": "gate", "by": "plain-lambda", "conversation": batch["conversationId"]}
    response = Functions().call(os.environ["GATE_FUNCTION"], question, response_seconds=6)
    return bool(response["result"]["holds"])


def ask(text: str) -> str:
    """Return the model's reply. It knows only this turn: keep the history in a table of yours, or in your agent."""
    question = [{"role": "user", "content": [{"text": text}]}]
    response = BEDROCK.converse(modelId=os.environ["MODEL"], messages=question)
    return str(response["output"]["message"]["content"][0]["text"])


def send(conversation: str, text: str, *, key: str) -> None:
    """Post the reply to your channel, or print it. A turn that is answered twice has the same `key`."""
    reply = json.dumps({"conversation": conversation, "text": text, "key": key})
    print(reply, flush=True)
    if url := os.environ.get("REPLY_URL"):
        urlopen(Request(url, reply.encode(), {"Content-Type": "application/json"}), timeout=20).close()  # noqa: S310
