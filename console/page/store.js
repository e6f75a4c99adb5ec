// The state of the page, and the connection to the console's server.

import { useEffect, useReducer } from "./vendor/htm-preact.js";

const BATCHES_KEPT = 3000;
const EVENTS_KEPT = 300;
const ITEMS_KEPT = 300;

export const state = {
  connected: false,
  hello: null, // what the server says about the stage and itself
  look: null, // the newest state of the stage
  busProblem: null,
  batches: [], // figures for the charts
  events: [], // the newest events, newest first
  chats: [], // the simulator's customers, each with what they sent and received
  buffers: {}, // conversation -> its newest buffer, and why it is due
  playing: null,
  toast: null,
};

const readers = new Set();
let drawing = false;

// Draw again with the next frame, once for all changes until then.
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
    if (hello.problem) say(hello.problem);
  });
  on("state", (look) => (state.look = look));
  on("bus", ({ problem }) => (state.busProblem = problem));
  on("notice", ({ text }) => say(text));
  on("event", takeEvent);
  on("sent", takeSent);
  on("buffer", (buffer) => (state.buffers[buffer.conversation] = buffer));
  on("scenario", takeScenario);
}

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
      add(chat, { kind: "event", at: event.at, text: event.type });
  }
}

function takeSent(sent) {
  const chat = chatOf(sent.customer);
  chat.conversation = sent.conversation;
  const item = chat.items.find((each) => each.messageId === sent.messageId && each.kind === "sent");
  if (sent.kind === "edit" && item && sent.status === 200) {
    item.text = sent.text;
    item.mark = "edited";
  } else if (sent.kind === "delete" && item && sent.status === 200) {
    item.mark = "deleted";
  } else if (sent.kind === "again" || sent.kind === "typing") {
    add(chat, { kind: "event", at: sent.at, text: sent.kind === "again" ? "delivered again" : "is typing" });
  } else {
    add(chat, { ...sent, kind: "sent", what: sent.kind });
  }
  if (sent.dueAt !== undefined) {
    const before = state.buffers[sent.conversation] || {};
    state.buffers[sent.conversation] = { ...before, conversation: sent.conversation, count: sent.count, dueAt: sent.dueAt };
  }
}

function takeScenario(step) {
  if (step.what === "began") {
    for (const customer of step.customers) chatOf(customer);
    state.chats = state.chats.slice(-2);
    state.playing = step;
  } else if (step.what === "step") {
    state.playing = step;
  } else if (step.what === "problem") {
    say(step.note);
  } else {
    state.playing = null;
  }
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
