"""Read a stage's events from a queue and handle each once; docs/consumer.md explains the steps.

Usage: python examples/consumer/consumer.py <queue URL> <file that remembers>
"""

import json
import sqlite3
import sys
import time
from contextlib import suppress
from typing import Any

import boto3

REMEMBER_SECONDS = 35 * 86_400
# The version of all three kinds of events that `handle` reads.
VERSION = 1
TABLES = """
    CREATE TABLE IF NOT EXISTS handled (event TEXT PRIMARY KEY, at REAL);
    CREATE TABLE IF NOT EXISTS cancelled (conversation TEXT, lane TEXT, generation INTEGER, at INTEGER);
"""
# The fields by which an event is known when it arrives again.
IDENTITY = {
    "messages.batch.ready": ["batchId"],
    "messages.amended": ["conversationId", "messageId", "change", "author", "at"],
    "messages.buffer.cancelled": ["conversationId", "messageId"],
}


def handle(kind: str, detail: dict[str, Any], memory: sqlite3.Connection) -> dict[str, Any]:
    """Handle one event and return what was done; if this raises, the queue delivers the event again."""
    if detail["version"] != VERSION:
        raise ValueError(f"{kind} has version {detail['version']}, this consumer reads version {VERSION}")
    by_operator = kind == "messages.buffer.cancelled" and detail["messageId"] is None
    event = json.dumps([kind, *(detail[field] for field in IDENTITY[kind]), detail["at"] if by_operator else None])
    forget_before = time.time() - REMEMBER_SECONDS
    memory.execute("DELETE FROM handled WHERE at < ?", (forget_before,))
    memory.execute("DELETE FROM cancelled WHERE at < ?", (forget_before * 1_000,))
    if not memory.execute("INSERT OR IGNORE INTO handled VALUES (?, ?)", (event, time.time())).rowcount:
        return {"repeated": event}
    about = (detail["conversationId"], detail["lane"], detail.get("generation"))
    if kind == "messages.amended":
        return {"amended": detail["messageId"], "change": detail["change"], "batch": detail["batchId"]}
    if kind == "messages.buffer.cancelled":
        memory.execute("INSERT INTO cancelled VALUES (?, ?, ?, ?)", (*about, detail["at"]))
        return {"cancelled": detail["generation"]}
    dropped = "SELECT 1 FROM cancelled WHERE conversation = ? AND lane = ? AND generation > ? AND at >= ?"
    if memory.execute(dropped, (*about, detail["metadata"]["lastMessageAt"])).fetchone():
        return {"outdated": detail["batchId"]}
    content = detail
    if reference := detail.get("messagesRef"):
        stored = boto3.client("s3").get_object(Bucket=reference["bucket"], Key=reference["key"])
        content = json.load(stored["Body"])
    # Here an agent would be asked: the messages are in content["messages"], their texts in content["text"].
    return {"batch": detail["batchId"], "messages": [message["id"] for message in content["messages"]]}


def run(queue: str, memory: sqlite3.Connection) -> None:
    """Handle events until the process is stopped."""
    sqs = boto3.client("sqs")
    while True:
        for message in sqs.receive_message(QueueUrl=queue, WaitTimeSeconds=20).get("Messages", []):
            event = json.loads(message["Body"])
            try:
                with memory:  # one transaction: the event is remembered only if it was handled
                    done = handle(event["detail-type"], event["detail"], memory)
            except Exception as error:  # noqa: BLE001 - the queue delivers it again, and at last to its dead-letter queue
                done = {"failed": type(error).__name__}
            else:
                sqs.delete_message(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"])
            print(json.dumps({"conversation": event["detail"].get("conversationId"), **done}), flush=True)


if __name__ == "__main__":
    connection = sqlite3.connect(sys.argv[2])
    connection.executescript(TABLES)
    with suppress(KeyboardInterrupt):
        run(sys.argv[1], connection)
