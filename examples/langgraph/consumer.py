"""A process that answers the turns of a stage's queue with a LangGraph graph, which remembers each conversation.

Usage: python consumer.py <queue URL> <SQLite file>
"""

import json
import os
import sqlite3
import sys
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import Request, urlopen

import boto3
from botocore.config import Config
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph

from message_buffer.consumer import turns
from message_buffer.consumer.turns import Turn
from message_buffer.errors import SendFailed

# The SDK's own limit of 60 s is too short for some answers, and its retries would ask again without a word.
AWS = boto3.Session()
BEDROCK = AWS.client("bedrock-runtime", config=Config(read_timeout=240, retries={"total_max_attempts": 1}))
S3 = AWS.client("s3")
# Each poller answers the conversations that one call of SQS delivers, at most ten.
POLLERS = 4


class SqliteMarks:
    """Remembers the answered batches, in the file in which the graph remembers the conversations."""

    def __init__(self, file: str) -> None:
        self._connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._connection.execute("CREATE TABLE IF NOT EXISTS marks (id TEXT PRIMARY KEY)")

    def answered(self, batch_ids: Collection[str]) -> set[str]:
        find = "SELECT 1 FROM marks WHERE id = ?"
        return {each for each in batch_ids if self._connection.execute(find, (each,)).fetchone()}

    def mark(self, batch_ids: Collection[str]) -> None:
        for each in batch_ids:
            self._connection.execute("INSERT OR IGNORE INTO marks VALUES (?)", (each,))


def ask(state: MessagesState) -> dict[str, list[AnyMessage]]:
    """Return the model's reply to the conversation. This is the graph's only node: put yours here."""
    said = [
        {"role": "assistant" if message.type == "ai" else "user", "content": [{"text": message.text}]}
        for message in state["messages"]
    ]
    response = BEDROCK.converse(modelId=os.environ["MODEL"], messages=said)
    return {"messages": [AIMessage(response["output"]["message"]["content"][0]["text"])]}


class Consumer:
    def __init__(self, file: str) -> None:
        graph = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask")
        self._graph = graph.compile(checkpointer=SqliteSaver(sqlite3.connect(file, check_same_thread=False)))
        self._marks = SqliteMarks(file)

    def run(self, queue_url: str) -> None:
        """Answer turns until the process is stopped."""
        while True:
            # The library looks for credentials only where Lambda puts them.
            if found := AWS.get_credentials():
                keys = found.get_frozen_credentials()
                os.environ |= {"AWS_ACCESS_KEY_ID": keys.access_key, "AWS_SECRET_ACCESS_KEY": keys.secret_key}
                os.environ |= {"AWS_SESSION_TOKEN": keys.token} if keys.token else {}
            try:
                turns.poll(queue_url, self.answer, marks=self._marks)
            except SendFailed as error:
                print(f"SQS cannot be reached: {error}", file=sys.stderr)
                time.sleep(1)

    def answer(self, turn: Turn) -> None:
        """Answer all batches of the turn with one reply. If this raises an error, the whole turn is delivered again."""
        newest = turn.batches[-1]
        thread: Any = {"configurable": {"thread_id": newest["conversationId"]}}
        asked = HumanMessage("\n".join(text_of(batch) for batch in turn.batches), id=newest["batchId"])
        messages = self._graph.get_state(thread).values.get("messages", [])
        # If the process was killed after the graph's last step, its reply is there already.
        if not any(message.id == asked.id for message in messages[:-1]):
            # If it was killed before that, a question without a reply is there. This turn contains it.
            unanswered = [RemoveMessage(str(each.id)) for each in messages[-1:] if each.type == "human"]
            messages = self._graph.invoke({"messages": [*unanswered, asked]}, thread, durability="sync")["messages"]
        turn.require_hidden()
        send(newest["conversationId"], messages[-1].text, key=newest["batchId"])


def text_of(batch: dict[str, Any]) -> str:
    """Return what the customer wrote, from S3 if it was too large for the queue."""
    if reference := batch.get("messagesRef"):
        stored = S3.get_object(Bucket=reference["bucket"], Key=reference["key"])
        batch = json.load(stored["Body"])
    return str(batch["text"]).strip() or "(no text)"  # Bedrock refuses a blank text


def send(conversation: str, text: str, *, key: str) -> None:
    """Post the reply to your channel, or print it. A turn that is answered twice has the same `key`."""
    reply = json.dumps({"conversation": conversation, "text": text, "key": key})
    print(reply, flush=True)
    if url := os.environ.get("REPLY_URL"):
        urlopen(Request(url, reply.encode(), {"Content-Type": "application/json"}), timeout=20).close()  # noqa: S310


if __name__ == "__main__":
    consumer = Consumer(sys.argv[2])
    with ThreadPoolExecutor(POLLERS) as threads:
        list(threads.map(consumer.run, [sys.argv[1]] * POLLERS))
