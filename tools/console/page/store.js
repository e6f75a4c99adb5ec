// The state of the page, and the connection to the console's server.

import { useEffect, useReducer } from "./vendor/htm-preact.js";

const EVENTS_KEPT = 3000;
const ITEMS_KEPT = 300;
const TOAST_MS = 6000;
const FRESH_MS = 5000;
const CONVERSATION = "/conversation/";

export const state = {
  connected: false,
  hello: null, // what the server says about the stage and itself
  stage: null, // the newest state of the stage
  busProblem: null,
  events: [], // the newest events without messages, newest first
  chats: [], // the customers, each with what they sent and received
  played: null, // the newest scenario: what it has done, and what came of it
  searched: "", // the text for which the reader searches
  doctor: null, // the newest report of what is wrong with the stage
  tune: null, // the newest report of how often authors go on
  aheadMs: 0, // how much the console's clock is ahead of the browser's
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

// How old the newest answer of the stage is, or null before the first.
export const ageMs = () => (state.stage?.readAt ? Math.max(Date.now() + state.aheadMs - state.stage.readAt, 0) : null);
// If this is false, the page does not know what the stage does now, so nothing may count down.
export const isFresh = () => state.connected && !state.stage?.problem && ageMs() != null && ageMs() < FRESH_MS;

export const addressOf = (conversation) => `#${CONVERSATION}${encodeURIComponent(conversation)}`;

// Return the conversation in the page's address, or null.
export function addressed() {
  const asked = location.hash.slice(1);
  if (!asked.startsWith(CONVERSATION)) return null;
  try {
    return decodeURIComponent(asked.slice(CONVERSATION.length));
  } catch {
    return asked.slice(CONVERSATION.length); // a % that a person typed
  }
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
    const events = [...hello.events].reverse();
    Object.assign(state, { hello, events, busProblem: hello.busProblem, aheadMs: hello.now - Date.now() });
    // These came while the page was loaded again, or was not connected.
    hello.events.forEach(takeIntoChat);
    for (const chat of state.chats) if (chat.conversation) chat.refresh();
  });
  on("state", (stage) => Object.assign(state, { stage }));
  on("bus", ({ problem }) => Object.assign(state, { busProblem: problem }));
  on("notice", ({ text }) => say(text));
  on("event", takeEvent);
}

// -- chats -----------------------------------------------------------------------------------------

// Return the chat of a customer. A pane stays when another customer is chosen for it.
export function newChat(customer, pane = crypto.randomUUID()) {
  const chat = { pane, customer, conversation: null, items: [], draft: "", edit: null, buffer: null, newestBatch: null, last: Promise.resolve() };
  chat.refresh = reader(() => ({ conversation: chat.conversation }), (found, isOutOfDate) => {
    if (found.problem || isOutOfDate) return;
    chat.buffer = found.waiting;
    changed();
  });
  return chat;
}

// Send a webhook as the chat's customer, after the answer to the one before it, which it might overtake otherwise.
// Return what went wrong, or an empty text. Until it is answered, it is in the chat as unsent, so that no text is lost.
// The page makes the message's id: if the answer is lost and the reader sends it again, the stage drops the repeat.
export function act(chat, kind, fields = {}) {
  const wish = { kind, text: "", messageId: `wamid.${crypto.randomUUID()}`, ...fields };
  const unsent = { kind: "unsent", at: Date.now(), wish, isNew: !itemOf(chat, wish.messageId), problem: "" };
  if (kind !== "typing") add(chat, unsent);
  changed();
  chat.last = chat.last.then(async () => {
    const sent = await ask("act", { ...chat.customer, ...wish });
    const problem = sent.problem ?? (sent.status === 200 ? "" : `The stage answered ${sent.status}.`);
    // A refused message is shown with its status. A refused change of a message is one that was not sent.
    if (sent.problem || (problem && !unsent.isNew)) unsent.problem = problem;
    else takeSent(chat, { kind, text: wish.text, ...sent }, unsent);
    changed();
    return problem;
  });
  return chat.last;
}

// Send a message a second time, as a platform does if it gets no answer.
export const again = (chat, item) => act(chat, item.what, { text: item.text, messageId: item.messageId });

// Send again what did not reach the stage, or what it refused.
export function retry(chat, item) {
  discard(chat, item);
  return act(chat, item.wish.kind, item.wish);
}

export function discard(chat, item) {
  chat.items = chat.items.filter((each) => each !== item);
  changed();
}

// Whether a message of the chat still waits. Stop words, flush words and messages that are gone do not.
export const isOpen = (item) => item.kind === "sent" && item.status === 200 && !item.batchId && !item.isGone && !item.answer.stopped && !item.answer.flushed;

const itemOf = (chat, messageId) => chat.items.find((each) => each.kind === "sent" && each.messageId === messageId);

function takeSent(chat, sent, unsent) {
  chat.conversation = sent.conversation;
  const item = itemOf(chat, sent.messageId);
  const later = sent.answer.amended ? " after its batch had been emitted" : "";
  if (sent.kind === "typing") add(chat, { kind: "note", at: sent.at, text: "is typing" });
  else if (unsent.isNew) Object.assign(unsent, { ...sent, kind: "sent", what: sent.kind });
  else {
    discard(chat, unsent);
    if (sent.kind === "delete") Object.assign(item, { mark: `deleted${later}`, isGone: true });
    else if (sent.kind !== item.what) Object.assign(item, { text: sent.text, mark: `edited${later}` });
    else add(chat, { kind: "note", at: sent.at, text: "delivered again" });
  }
  // The event of a batch may come before the answer to the webhook.
  if (chat.newestBatch) takeMessages(chat, chat.newestBatch);
  if (sent.dueAt) chat.buffer = { ...chat.buffer, count: sent.count, dueAt: sent.dueAt, why: null };
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
  state.events.unshift(withoutMessages(event));
  state.events.length = Math.min(state.events.length, EVENTS_KEPT);
  takeIntoChat(event);
}

const withoutMessages = (event) => ({ ...event, detail: { ...event.detail, messages: null, message: null, text: null, parts: null } });

function takeIntoChat(event) {
  const chat = state.chats.find((each) => each.conversation && each.conversation === event.conversation);
  const name = `${event.kind} ${event.at}`;
  if (!chat || event.at < chat.items[0]?.at || chat.items.some((item) => item.event === name)) return;
  if (event.kind === "messages.batch.ready") {
    chat.newestBatch = event.detail;
    takeMessages(chat, event.detail);
    chat.buffer = null;
    add(chat, { ...withoutMessages(event), kind: "batch", event: name });
  } else if (event.kind === "messages.reply.sent") {
    const text = event.detail.parts?.map((part) => part.text).join("\n") ?? "(hidden)";
    add(chat, { kind: "reply", at: event.at, text, event: name });
  } else {
    if (event.kind === "messages.buffer.cancelled") {
      chat.buffer = null;
      for (const item of chat.items) if (isOpen(item) && item.at <= event.at) Object.assign(item, { mark: "dropped", isGone: true });
    }
    add(chat, { kind: "note", at: event.at, text: IN_WORDS[event.kind] ?? event.kind, event: name });
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
