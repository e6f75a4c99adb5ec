"""Says in a few words what each rule means. docs/rules.md explains it in full."""

from collections.abc import Mapping

RULES_IN_WORDS: Mapping[str, str] = {
    "silenceMs": "the silence after which a batch is emitted",
    "typingInferenceMs": "this silence instead, if the last message came soon after the one before; 0 turns it off",
    "maxWaitMs": "the longest wait of the first message",
    "maxMessages": "with this many messages a batch is emitted at once",
    "minMessages": "with fewer messages, the batch waits until the longest wait is over",
    "priority": "vip: only vipSilenceMs sets the wait",
    "vipSilenceMs": "the silence after a VIP's message; 0 means at once",
    "adaptive": "whether the wait follows the author's own rhythm",
    "adaptiveFloorMs": "the shortest wait by rhythm",
    "adaptiveCeilingMs": "the longest wait by rhythm",
    "adaptiveK": "the more, the longer a batch waits beyond the author's mean gap",
    "mediaSilenceMs": "the wait after a file without words, because its caption may follow",
    "transcriptWaitMs": "the wait for a pending transcript",
    "pressedSilenceMs": "the wait after a pressed button; 0 means at once",
    "wait": "window: a fixed window instead of silence",
    "windowMs": "the length of the fixed window",
    "stopWords": "a message of this word alone drops the waiting messages",
    "flushWords": "after a message of this word alone, the waiting messages are emitted at once",
    "controlLanguages": "the languages whose built-in stop and flush words apply",
    "onHumanReply": "how long a conversation is on hold after a human agent has answered",
    "inboxApps": "Meta's apps in which people of the business type",
}
