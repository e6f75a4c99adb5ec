// The state of the page, and the connection to the console's server.

import { useEffect, useReducer } from "./vendor/htm-preact.js";

const BATCHES_KEPT = 3000;
const EVENTS_KEPT = 300;
const ITEMS_KEPT = 300;
export const CANCELLED = "Cancelled: the waiting messages were dropped, and consumers got an event about it.";
export const STARTED_AGAIN = "The local stage was started again, and is empty. What waited before is gone.";

export const state = {
  connected: false,
  hello: null, // what the server says about the stage and itself
  stage: null, // the newest state of the stage
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

// The page asks these by itself, again and again.
const READS = ["conversation", "rules", "logs"];

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
    // During an outage of Valkey, the page says so once, at its top.
    if (!(state.stage?.isOutage && READS.includes(path))) say(body.problem);
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
    takeHello(hello);
    state.batches = hello.batches;
    state.busProblem = hello.busProblem;
    state.refused = { ...hello.refused };
    state.played = hello.scenario;
  });
  on("state", (stage) => {
    const isBack = !stage.problem && (state.stage?.problem || state.hello?.problem);
    state.stage = stage;
    if (isBack) greet();
  });
  on("bus", ({ problem }) => {
    const isBack = !problem && state.busProblem;
    state.busProblem = problem;
    if (isBack) greet();
  });
  on("notice", ({ text }) => say(text));
  on("event", takeEvent);
  on("sent", takeSent);
  on("buffer", takeBuffer);
  on("scenario", takeScenario);
}

// Ask again what the stage offers, because it may have been started again meanwhile.
async function greet() {
  const hello = await ask("hello");
  if (!hello) return;
  takeHello(hello);
  changed();
}

function takeHello(hello) {
  const known = state.hello;
  if (known && hello.emptySince !== known.emptySince && hello.emptySince) forgetWaiting(hello.emptySince);
  // While the stage is down, the server cannot say what it offers. What is known stays on the screen.
  state.hello = known && hello.problem ? { ...known, problem: hello.problem } : hello;
  if (hello.problem) say(hello.problem);
}

// A local stage that was started again is empty, so messages that were sent before then wait no longer.
function forgetWaiting(sinceMs) {
  for (const chat of state.chats) {
    const lost = chat.items.filter((item) => isOpen(item) && item.at < sinceMs);
    for (const item of lost) item.mark = "dropped";
    chat.emitted = {};
    if (chat.items.every((item) => item.at < sinceMs)) delete state.buffers[chat.conversation];
    chat.items.push({ kind: "event", at: sinceMs, text: STARTED_AGAIN });
    chat.items.sort((a, b) => a.at - b.at);
  }
}

const IN_WORDS = {
  "messages.amended": "Consumers got an event about a change to a message that had been emitted.",
  "messages.buffer.cancelled": CANCELLED,
  "messages.conversation.taken_over": "A human agent has taken over. Messages wait until that hold ends, and consumers got an event about it.",
};

function takeEvent(event) {
  // Batches may be large. The list needs no messages, and a page that is open for days must not grow.
  const { conversationId, messageCount } = event.detail;
  state.events.unshift({ type: event.type, at: event.at, detail: { conversationId, messageCount } });
  state.events.length = Math.min(state.events.length, EVENTS_KEPT);
  if (event.figures) {
    state.batches.push(event.figures);
    if (state.batches.length > BATCHES_KEPT) state.batches.shift();
  }
  const chat = state.chats.find((each) => each.conversation === event.detail.conversationId);
  if (!chat) return;
  if (event.type === "messages.batch.ready") return takeBatch(chat, event);
  if (event.type === "messages.reply.sent") return add(chat, { kind: "reply", at: event.at, text: event.detail.text ?? "(hidden)" });
  if (event.type === "messages.buffer.cancelled") {
    delete state.buffers[chat.conversation];
    for (const item of chat.items) if (isOpen(item) && item.at <= event.at) item.mark = "dropped";
  }
  add(chat, { kind: "event", at: event.at, text: IN_WORDS[event.type] ?? event.type });
}

function takeBatch(chat, { at, detail, figures, why }) {
  const ids = new Set((detail.messages || []).map((message) => message.id));
  for (const item of chat.items) {
    // A large batch has a reference in place of its messages.
    const isIn = detail.messagesRef ? isOpen(item) && item.at <= detail.metadata.lastMessageAt : ids.has(item.messageId);
    if (isIn) item.batchId = detail.batchId;
  }
  chat.emitted[detail.lane] = detail.generation;
  add(chat, {
    kind: "batch", at, batchId: detail.batchId, count: detail.messageCount,
    reason: detail.flushReason, why, lateMs: figures?.lateMs, attempt: detail.attempt,
  });
  delete state.buffers[chat.conversation];
}

// Whether a message of the chat still waits. Stop words, flush words and messages that are gone do not.
export const isOpen = (item) => item.kind === "sent" && item.status === 200 && !item.batchId && !item.answer?.stopped && !item.answer?.flushed
  && item.mark !== "dropped" && !item.mark?.startsWith("deleted");

function takeSent(sent) {
  if (sent.status !== 200) state.refused[sent.status] = (state.refused[sent.status] ?? 0) + 1;
  // Other pages of this console have other customers.
  const chat = state.chats.find((each) => each.key === keyOf(sent.customer));
  if (!chat) return;
  chat.conversation = sent.conversation;
  const item = chat.items.find((each) => each.messageId === sent.messageId && each.kind === "sent");
  if (sent.kind === "edit" && item && sent.status === 200) {
    item.text = sent.text;
    item.mark = sent.answer?.amended ? "edited after its batch had been emitted" : "edited";
  } else if (sent.kind === "delete" && item && sent.status === 200) {
    item.mark = sent.answer?.amended ? "deleted after its batch had been emitted" : "deleted";
  } else if (sent.kind === "again" || sent.kind === "typing") {
    add(chat, { kind: "event", at: sent.at, text: sent.kind === "again" ? "delivered again" : "is typing" });
  } else if (sent.kind === "human_reply") {
    add(chat, { kind: "human_reply", at: sent.at, text: sent.text, status: sent.status });
  } else {
    add(chat, { ...sent, kind: "sent", what: sent.kind });
  }
  if (sent.dueAt !== undefined) takeDueTime(sent);
}

function takeDueTime({ conversation, count, dueAt }) {
  const known = state.buffers[conversation];
  // Facts about an earlier, now empty buffer do not apply to the new one.
  const before = known?.count > 0 ? known : {};
  state.buffers[conversation] = { ...before, conversation, count: count ?? before.count, dueAt };
  // The reason for the new due time arrives a moment later.
  if (before.dueAt !== dueAt) state.buffers[conversation].why = null;
}

// Keep only the chats' buffers, so that a page that is open for days does not grow.
function takeBuffer(buffer) {
  const chat = state.chats.find((each) => each.conversation === buffer.conversation);
  // The stage may have answered before the batch was emitted, and the answer may have come after it.
  if (!chat || buffer.generation <= chat.emitted[buffer.lane]) return;
  state.buffers[buffer.conversation] = { ...state.buffers[buffer.conversation], ...buffer };
  const shown = new Set(state.chats.map((chat) => chat.conversation));
  for (const name of Object.keys(state.buffers)) if (!shown.has(name)) delete state.buffers[name];
}

export const isPlaying = (played) => played?.state === "playing" || played?.state === "waiting";

// Whether this page has started the scenario, perhaps before it was loaded again.
export const isOwn = (played) => played.run === sessionStorage.getItem("run");

function takeScenario(played) {
  const isNew = state.played?.name !== played.name || state.played.run !== played.run;
  // The customers of another page's scenario appear under Live only.
  if (isNew && isOwn(played)) state.chats = played.customers.map((each) => newChat(each));
  state.played = played;
}

function add(chat, item) {
  chat.items.push(item);
  if (chat.items.length > ITEMS_KEPT) chat.items.shift();
}

export const keyOf = (customer) => [customer.tenant ?? "", customer.platform, customer.account, customer.user].join("\n");

let panes = 0;

// A pane stays when another customer is chosen for it.
export const newChat = (customer, pane = (panes += 1)) => ({ pane, key: keyOf(customer), customer, conversation: null, items: [], emitted: {} });

export function chatOf(customer) {
  const key = keyOf(customer);
  let chat = state.chats.find((each) => each.key === key);
  if (!chat) {
    chat = newChat(customer);
    state.chats.push(chat);
    state.chats = state.chats.slice(-2);
  }
  return chat;
}
