"""A Strands agent for AgentCore Runtime: remembers each conversation, and answers a turn that comes twice only once."""

import asyncio
import os
from collections import defaultdict
from typing import Any

from bedrock_agentcore import BedrockAgentCoreApp, RequestContext
from strands import Agent
from strands.models import BedrockModel
from strands.session import SnapshotSessionManager
from strands.storage import LocalFileStorage, S3Storage

app = BedrockAgentCoreApp()
# If the consumer is killed, its call goes on here, and the next call of the same turn waits until it has ended.
turn_of = defaultdict[str | None, asyncio.Lock](asyncio.Lock)


@app.entrypoint  # type: ignore[untyped-decorator]
async def reply(payload: dict[str, Any], context: RequestContext) -> dict[str, Any]:
    """Return the reply to a turn. AgentCore ends idle sessions, so all that the agent remembers is in storage."""
    async with turn_of[context.session_id]:
        bucket = os.environ.get("SESSIONS_BUCKET")
        storage = S3Storage(bucket) if bucket else LocalFileStorage(os.environ["SESSIONS_FOLDER"])
        # With "trigger" nothing is saved by itself: a turn that fails leaves no half of it in the history.
        session = SnapshotSessionManager(str(context.session_id), storage=storage, save_latest_on="trigger")
        model = BedrockModel(model_id=os.environ["MODEL"], streaming=False)
        agent = Agent(model=model, session_manager=session, callback_handler=None)
        if agent.state.get("turn") != payload["turn"]:
            result = await agent.invoke_async(payload["content"])
            agent.state.set("turn", payload["turn"])
            agent.state.set("reply", str(result).strip())
            await session.save_snapshot(agent, is_latest=True)
        return {"reply": agent.state.get("reply")}


if __name__ == "__main__":
    app.run(port=int(os.environ.get("PORT", "8080")))
