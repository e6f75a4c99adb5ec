// The state of the page, and the connection to the console's server.

import { useEffect, useReducer } from "./vendor/htm-preact.js";

const EVENTS_KEPT = 3000;
const ITEMS_KEPT = 300;
const TOAST_MS = 6000;

export const state = {
  connected: false,
  hello: null, // what the server says about the stage and itself
  stage: null, // the newest state of the stage
  busProblem: null,
  events: [], // the newest events without messages, newest first
  chats: [], // the customers, each with what they sent and received
  played: null, // the newest scenario: what it has done, and what came of it
  refused: {}, // HTTP status -> how many of this page's webhooks
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
  const toast = { text };
  state.toast = toast;
  changed();
  setTimeout(() => {
    if (state.toast === toast) state.toast = null;
    changed();
  }, TOAST_MS);
}

// Ask the server. Return the answer, or an object with only a `problem`.
export async function ask(path, wish) {
  try {
    const answer = await fetch(`api/${path}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(wish),
    });
    return await answer.json().catch(() => ({ problem: `The console answered ${answer.status}.` }));
  } catch {
    return { problem: "The console's server does not answer. Is it still running?" };
  }
}

// Return a function that asks for a conversation and hands the answer to `use`, with whether it is out of date already.
// It never asks twice at the same time. On a busy stage the questions would pile up, and later ones wait behind them.
export function reader(wish, use) {
  let isUnderWay = false;
  let isAskedAgain = false;
  return async () => {
    isAskedAgain = isUnderWay;
    if (isUnderWay) return;
    isUnderWay = true;
    do {
      isAskedAgain = false;
      const found = await ask("conversation", wish());
      use(found, isAskedAgain);
    } while (isAskedAgain);
    isUnderWay = false;
  };
}

export function connect() {
  const stream = new EventSource("stream");
  const on = (kind, take) => stream.addEventListener(kind, (message) => {
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
    state.busProblem = hello.busProblem;
    state.events = hello.events.reverse();
  });
  on("state", (stage) => {
    state.stage = stage;
  });
  on("bus", ({ problem }) => {
    state.busProblem = problem;
  });
  on("notice", ({ text }) => say(text));
  on("event", takeEvent);
}

// -- chats -----------------------------------------------------------------------------------------

let panes = 0;

// Return the chat of a customer. A pane stays when another customer is chosen for it.
export function newChat(customer, pane = (panes += 1)) {
  const chat = { pane, customer, conversation: null, items: [], buffer: null, newestBatch: null, last: Promise.resolve() };
  chat.refresh = reader(() => ({ conversation: chat.conversation }), (found, isOutOfDate) => {
    if (found.problem || isOutOfDate) return;
    chat.buffer = found.waiting;
    changed();
  });
  return chat;
}

// Send a webhook as the chat's customer, after the answer to the one before it, which it might overtake otherwise.
// Return what went wrong, or an empty text.
export function act(chat, kind, fields = {}) {
  chat.last = chat.last.then(async () => {
    const sent = await ask("act", { ...chat.customer, kind, ...fields });
    if (sent.problem) say(sent.problem);
    else takeSent(chat, { kind, text: fields.text ?? "", ...sent });
    return sent.problem ?? (sent.status === 200 ? "" : `The stage answered ${sent.status}.`);
  });
  return chat.last;
}

// Send a message a second time, as a platform does if it gets no answer.
export const again = (chat, item) => act(chat, item.what, { text: item.text, messageId: item.messageId });

// Whether a message of the chat still waits. Stop words, flush words and messages that are gone do not.
export const isOpen = (item) => item.kind === "sent" && item.status === 200 && !item.batchId && !item.isGone && !item.answer.stopped && !item.answer.flushed;

function takeSent(chat, sent) {
  chat.conversation = sent.conversation;
  if (sent.status !== 200) state.refused[sent.status] = (state.refused[sent.status] ?? 0) + 1;
  const item = chat.items.find((each) => each.kind === "sent" && each.messageId === sent.messageId);
  const later = sent.answer.amended ? " after its batch had been emitted" : "";
  if (sent.kind === "typing") add(chat, { kind: "note", at: sent.at, text: "is typing" });
  else if (!item) add(chat, { ...sent, kind: "sent", what: sent.kind });
  else if (sent.status === 200 && sent.kind === "delete") Object.assign(item, { mark: `deleted${later}`, isGone: true });
  else if (sent.status === 200 && sent.kind !== item.what) Object.assign(item, { text: sent.text, mark: `edited${later}` });
  else add(chat, { kind: "note", at: sent.at, text: "delivered again" });
  // The event of a batch may come before the answer to the webhook.
  if (chat.newestBatch) takeMessages(chat, chat.newestBatch);
  if (sent.dueAt) chat.buffer = { ...chat.buffer, count: sent.count, dueAt: sent.dueAt, why: null };
  changed();
  chat.refresh();
}

function add(chat, item) {
  chat.items.push(item);
  if (chat.items.length > ITEMS_KEPT) chat.items.shift();
}

// -- events ----------------------------------------------------------------------------------------

const IN_WORDS = {
  "messages.amended": "Consumers got an event about a change to a message that had been emitted.",
  "messages.buffer.cancelled": "Cancelled: the waiting messages were dropped, and consumers got an event about it.",
  "messages.reply.failed": "The platform could not deliver a message to the customer, and consumers got an event about it.",
  "messages.conversation.handed_off": "People answer from now on, and consumers got an event about it.",
  "messages.conversation.handed_back": "Handed back: agents may answer again, and consumers got an event about it.",
  "messages.conversation.completed": "The task is done, and consumers got an event about it.",
};

function takeEvent(event) {
  // Batches may be large. The list needs no messages, and a page that is open for days must not grow.
  state.events.unshift({ ...event, detail: { ...event.detail, messages: null, message: null, text: null, parts: null } });
  state.events.length = Math.min(state.events.length, EVENTS_KEPT);
  const chat = state.chats.find((each) => each.conversation && each.conversation === event.conversation);
  if (!chat) return;
  if (event.kind === "messages.batch.ready") {
    chat.newestBatch = event.detail;
    takeMessages(chat, event.detail);
    chat.buffer = null;
    add(chat, { ...event, kind: "batch" });
  } else if (event.kind === "messages.reply.sent") {
    const text = event.detail.parts?.map((part) => part.text).join("\n") ?? "(hidden)";
    add(chat, { kind: "reply", at: event.at, text });
  } else {
    if (event.kind === "messages.buffer.cancelled") {
      chat.buffer = null;
      for (const item of chat.items) if (isOpen(item) && item.at <= event.at) Object.assign(item, { mark: "dropped", isGone: true });
    }
    add(chat, { kind: "note", at: event.at, text: IN_WORDS[event.kind] ?? event.kind });
  }
  chat.refresh();
}

// Mark the messages that the batch contains. The event of a large batch has no messages.
function takeMessages(chat, { batchId, messages, metadata }) {
  const ids = messages?.length ? new Set(messages.map((message) => message.id)) : null;
  for (const item of chat.items) {
    const isIn = ids ? ids.has(item.messageId) : isOpen(item) && item.at <= metadata.lastMessageAt;
    if (isIn) item.batchId = batchId;
  }
}
