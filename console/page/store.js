// The state of the page, and the connection to the console's server.

import { useEffect, useReducer } from "./vendor/htm-preact.js";

const BATCHES_KEPT = 3000;
const EVENTS_KEPT = 300;
const ITEMS_KEPT = 300;
export const CANCELLED = "Cancelled: the waiting messages were dropped, and consumers got an event about it.";

export const state = {
  connected: false,
  hello: null, // what the server says about the stage and itself
  look: null, // the newest state of the stage
  busProblem: null,
  batches: [], // figures for the charts
  events: [], // the newest events, newest first
  chats: [], // the simulator's customers, each with what they sent and received
  buffers: {}, // conversation -> its newest buffer, and why it is due
  played: null, // the newest scenario: what it has done, and what came of it
  refused: {}, // HTTP status -> how many of the simulator's webhooks
  toast: null,
};

const readers = new Set();
let drawing = false;

// Draw the page again with the next frame. All changes until then are drawn together.
export function changed() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    for (const draw of [...readers]) draw();
  });
}

export function useStore() {
  const [, draw] = useReducer((n) => n + 1, 0);
  useEffect(() => {
    readers.add(draw);
    return () => readers.delete(draw);
  }, []);
  return state;
}

export function say(text) {
  state.toast = { text, at: Date.now() };
  changed();
  setTimeout(() => {
    if (state.toast && Date.now() - state.toast.at >= 6000) {
      state.toast = null;
      changed();
    }
  }, 6100);
}

// Ask the server. Return the answer, or null after showing what went wrong.
export async function ask(path, wish = {}) {
  try {
    const answer = await fetch(`api/${path}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(wish),
    });
    const body = await answer.json().catch(() => ({ problem: `The console answered ${answer.status}.` }));
    if (answer.ok) return body;
    say(body.problem);
  } catch {
    say("The console's server does not answer. Is it still running?");
  }
  return null;
}

export function connect() {
  const stream = new EventSource("stream");
  const on = (kind, take) =>
    stream.addEventListener(kind, (message) => {
      take(JSON.parse(message.data));
      changed();
    });
  stream.onopen = () => {
    state.connected = true;
    changed();
  };
  stream.onerror = () => {
    state.connected = false;
    changed();
  };
  on("hello", (hello) => {
    state.hello = hello;
    state.batches = hello.batches;
    state.busProblem = hello.busProblem;
    state.refused = { ...hello.refused };
    state.played = hello.scenario;
    if (hello.problem) say(hello.problem);
  });
  on("state", (look) => (state.look = look));
  on("bus", ({ problem }) => (state.busProblem = problem));
  on("notice", ({ text }) => say(text));
  on("event", takeEvent);
  on("sent", takeSent);
  on("buffer", takeBuffer);
  on("scenario", takeScenario);
}

const IN_WORDS = {
  "messages.amended": "Consumers got an event about a change to a message that had left.",
  "messages.buffer.cancelled": CANCELLED,
  "messages.conversation.taken_over": "A person of the business has taken over. Messages wait until that hold ends, and consumers got an event about it.",
};

function takeEvent(event) {
  state.events.unshift(event);
  state.events.length = Math.min(state.events.length, EVENTS_KEPT);
  if (event.figures) {
    state.batches.push(event.figures);
    if (state.batches.length > BATCHES_KEPT) state.batches.shift();
  }
  const detail = event.detail;
  const chat = state.chats.find((each) => each.conversation === detail.conversationId);
  if (!chat) return;
  switch (event.type) {
    case "messages.batch.ready": {
      const ids = new Set((detail.messages || []).map((message) => message.id));
      for (const item of chat.items) if (ids.has(item.messageId)) item.batchId = detail.batchId;
      add(chat, {
        kind: "batch", at: event.at, batchId: detail.batchId, count: detail.messageCount,
        reason: detail.flushReason, lateMs: event.figures?.lateMs, attempt: detail.attempt,
      });
      delete state.buffers[chat.conversation];
      break;
    }
    case "messages.reply.sent":
      add(chat, { kind: "reply", at: event.at, text: detail.text ?? "(hidden)" });
      break;
    default:
      if (event.type === "messages.buffer.cancelled") delete state.buffers[chat.conversation];
      add(chat, { kind: "event", at: event.at, text: IN_WORDS[event.type] ?? event.type });
  }
}

function takeSent(sent) {
  if (sent.status !== 200) state.refused[sent.status] = (state.refused[sent.status] ?? 0) + 1;
  const chat = chatOf(sent.customer);
  chat.conversation = sent.conversation;
  const item = chat.items.find((each) => each.messageId === sent.messageId && each.kind === "sent");
  if (sent.kind === "edit" && item && sent.status === 200) {
    item.text = sent.text;
    item.mark = sent.answer?.amended ? "edited after its batch had left" : "edited";
  } else if (sent.kind === "delete" && item && sent.status === 200) {
    item.mark = sent.answer?.amended ? "deleted after its batch had left" : "deleted";
  } else if (sent.kind === "again" || sent.kind === "typing") {
    add(chat, { kind: "event", at: sent.at, text: sent.kind === "again" ? "delivered again" : "is typing" });
  } else if (sent.kind === "human_reply") {
    add(chat, { kind: "human_reply", at: sent.at, text: sent.text, status: sent.status });
  } else {
    add(chat, { ...sent, kind: "sent", what: sent.kind });
  }
  if (sent.dueAt !== undefined) {
    const known = state.buffers[sent.conversation];
    // Facts about an earlier, now empty buffer do not apply to the new one.
    const before = known?.count > 0 ? known : {};
    state.buffers[sent.conversation] = { ...before, conversation: sent.conversation, count: sent.count ?? before.count, dueAt: sent.dueAt };
    // The reason for the new due time arrives a moment later.
    if (before.dueAt !== sent.dueAt) state.buffers[sent.conversation].why = null;
  }
}

// Keep the chats' buffers alone, so that a page that is open for days does not grow.
function takeBuffer(buffer) {
  state.buffers[buffer.conversation] = buffer;
  const shown = new Set(state.chats.map((chat) => chat.conversation));
  for (const name of Object.keys(state.buffers)) if (!shown.has(name)) delete state.buffers[name];
}

function takeScenario(played) {
  if (state.played?.name !== played.name || state.played.run !== played.run) {
    for (const customer of played.customers) chatOf(customer);
    state.chats = state.chats.slice(-2);
  }
  state.played = played;
}

function add(chat, item) {
  chat.items.push(item);
  if (chat.items.length > ITEMS_KEPT) chat.items.shift();
}

export function chatOf(customer) {
  const key = [customer.tenant ?? "", customer.platform, customer.account, customer.user].join("\n");
  let chat = state.chats.find((each) => each.key === key);
  if (!chat) {
    chat = { key, customer, conversation: null, items: [] };
    state.chats.push(chat);
    state.chats = state.chats.slice(-2);
  }
  return chat;
}
