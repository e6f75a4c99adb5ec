// Plays a scenario as one or two customers, and compares what came of it with what should come.

import { html } from "./vendor/htm-preact.js";
import { Moment, becauseOf, messagesOf } from "./format.js";
import { act, again, changed, newChat, state } from "./store.js";

// The first starts of two functions take some seconds.
const MAX_WAIT_FOR_BATCH_MS = 60_000;
const LOOK_EVERY_MS = 50;
const NO_BATCH = `No batch came within ${MAX_WAIT_FOR_BATCH_MS / 1000} s.`;
const WHATSAPP = { platform: "whatsapp", account: "106540352242922", tenant: null };
const GENERIC = { platform: "generic", account: "shop", tenant: null };

// A step begins `after` seconds after the beginning of the step before it or, if it has `batch`, after the arrival of the
// batch with that number. `batches` are the messages of each batch that should come, by customer.
const SCENARIOS = [
  {
    title: "Fragments",
    about: "A customer writes five short messages, and one batch is emitted.",
    customers: [WHATSAPP],
    steps: [
      { after: 0, text: "Hey", note: "The first message opens a buffer, which waits for silence." },
      { after: 2.2, text: "I have a question", note: "The gap was short, so the author is probably still typing. The buffer now waits for longer." },
      { after: 0.8, text: "about my order", note: "Each message begins the wait again. The bar jumps to the new due time." },
      { after: 4, text: "#12345", note: "No batch has been emitted, because the author has not been silent for long enough." },
      { after: 1.3, text: "when will it arrive?", note: "The customer writes no more. The batch is emitted after the silence." },
    ],
    batches: [[5]],
    result: "One batch is emitted, with all five messages.",
  },
  {
    title: "Picture, then its caption",
    about: "A picture often comes a moment before its caption. The buffer waits for both.",
    customers: [WHATSAPP],
    steps: [
      { after: 0, kind: "file", note: "The picture waits, because its caption may follow." },
      { after: 3, text: "this is what arrived", note: "The caption came in time. It was typed soon after, so the buffer waits for more." },
    ],
    batches: [[2]],
    result: "One batch is emitted, with the picture and its caption.",
  },
  {
    title: "Interrupted agent",
    about: "The customer writes again just after a batch has been emitted, while the agent may be working on it.",
    customers: [WHATSAPP],
    steps: [
      { after: 0, text: "I want to return my shoes", note: "The customer begins a question in two messages." },
      { after: 0.6, text: "order 998", note: "Both become one batch, which the agent gets." },
      { after: 0.2, batch: 1, text: "wait", note: "The batch has been emitted, so this message opens a new buffer. An agent that is still working can ask the stage whether its batch is out of date." },
      { after: 0.6, text: "I want to exchange them", note: "These two messages become the next batch." },
    ],
    batches: [[2, 2]],
    result: "Two batches are emitted, one after the other, with two messages each.",
  },
  {
    title: "Two customers",
    about: "Two people write at the same time, and each conversation has a buffer.",
    customers: [WHATSAPP, GENERIC],
    steps: [
      { after: 0, text: "Hi", note: "The WhatsApp customer writes." },
      { after: 0.25, who: 1, text: "Hello", note: "The Generic customer writes at the same time." },
      { after: 0.25, text: "are you open today?", note: "WhatsApp again: each conversation has a buffer of its own." },
      { after: 0.25, who: 1, text: "my invoice is wrong", note: "Generic again: each buffer has a due time of its own." },
      { after: 1.2, who: 1, text: "number 77", note: "Generic again: only this customer's due time moves. The other batch is emitted first." },
    ],
    batches: [[2], [3]],
    result: "Two batches are emitted, each with the messages of one customer.",
  },
  {
    title: "Edit, delete, deliver again",
    about: "An edit or a deletion changes a message that still waits. A redelivery changes nothing.",
    customers: [GENERIC],
    steps: [
      { after: 0, text: "Hello", note: "The customer writes." },
      { after: 0.5, text: "Order 12345", note: "The second message has a wrong number. The buffer now waits for longer." },
      { after: 0.9, kind: "edit", text: "Order 12354", note: "The edit replaces the text of the waiting message. The due time stays." },
      { after: 0.8, kind: "again", note: "The platform delivers the message again. The buffer drops the duplicate. Nothing changes." },
      { after: 0.6, text: "and a blue one", note: "A third message joins, and begins the wait again." },
      { after: 1.2, kind: "delete", note: "The third message is deleted while it waits. The due time stays." },
    ],
    batches: [[2]],
    result: "One batch is emitted, with the first two messages. The second one is as edited.",
  },
];

const isPlaying = (played) => played?.state === "playing";

export function Scenarios({ store, platforms, isWide }) {
  const { played } = store;
  const offered = SCENARIOS.filter(({ customers }) => customers.every(({ platform }) => platform in platforms));
  return html`<details class="menu" open=${isWide}><summary>Play a scenario</summary><div class="scenarios">
    ${offered.map((each) => html`<button key=${each.title} title=${each.about} disabled=${isPlaying(played)} onClick=${() => play(each)}>${each.title}</button>`)}
    ${isPlaying(played) && html`<button class="plain" onClick=${() => stop(played)}>Stop</button>`}
  </div></details>`;
}

// The steps of the newest scenario, and what came of them. They stay until the next scenario is played.
export function Played({ played }) {
  const { scenario } = played;
  return html`<div class="played" role="region" aria-label=${`Scenario: ${scenario.title}`}>
    <h3>${scenario.title}</h3>
    <p>${scenario.about}</p>
    <ol class="steps" role="log" aria-label="Steps">${played.steps.map((step) => html`<li key=${step.at}><${Moment} at=${step.at} />
      ${" "}${step.note} ${step.problem && html`<b class="problem">${step.problem}</b>`}</li>`)}</ol>
    <p role="status">${played.state === "playing" ? "Playing …" : played.state === "stopped" ? "Stopped." : ""}</p>
    ${played.state === "ended" && html`<p><b>What you should have seen:</b> ${scenario.result}</p>
      <p><b>What came:</b> ${inWords(played)} ${isAsExpected(played) ? "That is as expected."
        : "That differs. Perhaps other rules apply here, or a function's first start took some seconds, or the console missed events."}</p>`}
  </div>`;
}

function inWords(played) {
  const came = played.chats.flatMap(batchesOf).map((batch) => `${messagesOf(batch.detail.messageCount)} because of ${becauseOf(batch)}`);
  return `${came.length} ${came.length === 1 ? "batch" : "batches"} (${came.join("; ")}).`;
}

// The chat's batches. The event of a batch may come more than once.
const batchesOf = (chat) => [...new Map(chat.items.filter((item) => item.kind === "batch").map((item) => [item.detail.batchId, item])).values()];
const isAsExpected = ({ scenario, chats }) => chats.every((chat, who) =>
  String(batchesOf(chat).map((batch) => batch.detail.messageCount)) === String(scenario.batches[who]));

function stop(played) {
  played.state = "stopped";
  changed();
}

async function play(scenario) {
  // Each run has new customers.
  const run = String(Math.floor(1e8 + Math.random() * 9e8));
  const chats = scenario.customers.map((customer) => newChat({ ...customer, user: `49${run}` }));
  const played = { scenario, chats, state: "playing", steps: [] };
  Object.assign(state, { played, chats: [...chats] });
  const came = () => chats.flatMap(batchesOf);
  let began = Date.now();
  for (const step of scenario.steps) {
    let problem = "";
    if (step.batch && await wait(played, () => came().length >= step.batch)) began = came()[step.batch - 1].at;
    else if (step.batch) problem = NO_BATCH;
    // Count from the beginning of the previous step, because a person does not wait for the webhook's answer.
    await wait(played, () => Date.now() >= began + step.after * 1000);
    if (played.state !== "playing") return;
    began = Date.now();
    const entry = { note: step.note, at: began, problem };
    played.steps.push(entry);
    changed();
    entry.problem ||= await take(chats[step.who ?? 0], step);
    changed();
  }
  await wait(played, () => came().length >= scenario.batches.flat().length);
  if (played.state === "playing") played.state = "ended";
  changed();
}

function take(chat, { kind = "text", text = "" }) {
  const newest = chat.items.findLast((item) => item.kind === "sent");
  if (kind === "text" || kind === "file") return act(chat, kind, { text });
  if (!newest) return "The message before this step was not sent.";
  return kind === "again" ? again(chat, newest) : act(chat, kind, { text, messageId: newest.messageId });
}

// Wait until the condition holds, and return whether it does. Give up after a time, or if the reader stops the scenario.
async function wait(played, holds) {
  const deadline = Date.now() + MAX_WAIT_FOR_BATCH_MS;
  while (played.state === "playing" && !holds() && Date.now() < deadline) await new Promise((done) => setTimeout(done, LOOK_EVERY_MS));
  return holds();
}
