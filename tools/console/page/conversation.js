// One conversation: its state, what an operator may do, the waiting messages, and the time line.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { EventLine, WhyLate } from "./events.js";
import { Countdown, Moment, becauseOf, messagesOf } from "./format.js";
import { ask, reader, say } from "./store.js";

const AGAIN_EVERY_MS = 3000;
const ACTIONS = {
  flush: ["Flush", "The waiting messages become due now, and their batch is emitted at once. A hold stays for later messages."],
  hold: ["Hold", "No batch is emitted until the hold ends, or until an operator resumes the conversation. Messages are kept."],
  resume: ["Resume", "All holds end, and the waiting messages become due now."],
  cancel: ["Cancel", "The waiting messages are dropped for good, and consumers get an event about it. This cannot be undone."],
};
const HOLDS = [[15 * 60_000, "15 minutes"], [3_600_000, "an hour"], [8 * 3_600_000, "8 hours"], [24 * 3_600_000, "24 hours"]];

export function ConversationDialog({ conversation, store, close }) {
  const dialog = useRef(null);
  const [shown, setShown] = useState(null);
  const [read] = useState(() => reader(() => ({ conversation, messages: true }), (found) =>
    setShown((before) => (found.problem ? { ...before, problem: found.problem } : found))));
  const newest = store.events.find((event) => event.conversation === conversation)?.at;
  useEffect(() => {
    const opened = dialog.current;
    opened.showModal();
    return () => opened.close();
  }, []);
  useEffect(() => {
    read();
    const again = setInterval(read, AGAIN_EVERY_MS);
    return () => clearInterval(again);
  }, [newest]);
  // A dialog that a change of address removed says "close" a moment later, when its address may already be shown again.
  const closed = () => dialog.current && close();
  return html`<dialog ref=${dialog} class="conversation" aria-labelledby="its-name" onClose=${closed}>
    <header><h2 id="its-name">${conversation}</h2><button class="plain" onClick=${() => dialog.current.close()}>Close</button></header>
    ${shown?.problem && html`<p class="problem" role="alert">${shown.problem}</p>`}
    ${!shown && html`<p class="empty">Looking …</p>`}
    ${shown?.waiting && html`
      <p class="why">${shown.waiting.why?.text ?? (shown.known ? "Nothing waits." : "The stage remembers nothing of it: it never was, it was forgotten, or it was idle for long.")}</p>
      <${WhyLate} id=${conversation}>Is it late, and why?<//>
      <${Facts} shown=${shown} />
      ${shown.dynamodb && html`<h3>In the DynamoDB lane</h3><${Facts} shown=${shown.dynamodb} />`}
      ${store.hello.allowChanges && html`<${Actions} conversation=${conversation} shown=${shown} read=${read} />`}
      <h3>Waiting messages</h3><${Messages} shown=${shown} words=${store.hello.showWords} />
      <h3>Time line</h3><${TimeLine} entries=${shown.timeLine} />`}
  </dialog>`;
}

// What an operator may do. Each action asks first.
function Actions({ conversation, shown, read }) {
  const [asked, setAsked] = useState(null);
  const [holdMs, setHoldMs] = useState(HOLDS[1][0]);
  const act = async () => {
    setAsked(null);
    const { problem } = await ask("operate", { conversation, operation: asked, ...(asked === "hold" ? { holdMs } : {}) });
    if (problem) say(problem);
    read();
  };
  return html`<div class="actions" role="group" aria-label="Actions">
    ${Object.entries(ACTIONS).map(([name, [title]]) => html`<button key=${name} disabled=${isPointless(name, shown)} onClick=${() => setAsked(name)}>${title}</button>`)}</div>
    ${asked && html`<div class="question" role="alertdialog" aria-label="Confirm"><p>${ACTIONS[asked][1]}</p>
      ${asked === "hold" && html`<label>For <select value=${holdMs} onChange=${(event) => setHoldMs(Number(event.target.value))}>
        ${HOLDS.map(([ms, text]) => html`<option key=${ms} value=${ms}>${text}</option>`)}</select></label>${" "}`}
      <button onClick=${act}>${ACTIONS[asked][0]} now</button>
      <button class="plain" onClick=${() => setAsked(null)}>Do nothing</button></div>`}`;
}

// The stage would refuse these, because nothing waits or there is no hold.
function isPointless(name, shown) {
  const parts = [shown, shown.dynamodb].filter(Boolean);
  if (name === "resume") return !parts.some((each) => each.holds.length);
  return name !== "hold" && !parts.some((each) => each.count || each.batch);
}

function Facts({ shown }) {
  const both = (at) => html`<${Countdown} at=${at} stale="at" /> (<${Moment} at=${at} />)`;
  const facts = [
    ["State", shown.heldUntil && shown.state === "pending" ? "on hold" : shown.state],
    ["Messages", shown.count],
    ["Due", shown.dueAt && both(shown.dueAt)],
    ["Because of", shown.rule && html`${shown.reason} <code>${shown.rule}</code>`],
    ["First waiting", shown.firstAt && html`<${Moment} at=${shown.firstAt} />`],
    ["Last message", html`<${Moment} at=${shown.lastAt} />`],
    ["Holds", shown.holds.length ? shown.holds.map((hold) => html`<div key=${hold.holder}>${hold.holder} (${hold.cause}), ends ${hold.until ? both(hold.until) : "when it is resumed"}</div>`) : "none"],
    ...(shown.replyUntil ? [["Free replies end", html`${both(shown.replyUntil)}; later the platform refuses ordinary replies until the customer writes again`]] : []),
    ["Taken batch", shown.batch ? `${shown.batch.batchId}, attempt ${shown.batch.attempt}, ${messagesOf(shown.batch.count)}` : "none"],
    ["Generation", shown.generation],
  ];
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value ?? "–"}</dd></div>`)}</dl>`;
}

function Messages({ shown, words }) {
  if (!words) return html`<p class="empty">People's words are hidden. Start the console with <code>--show-words</code> to see them.</p>`;
  const all = [...(shown.messages ?? []), ...(shown.dynamodb?.messages ?? [])];
  if (!all.length) return html`<p class="empty">No message waits.</p>`;
  return html`<ol class="messages">${all.map((message, place) => html`<li key=${place}><${Moment} at=${message.receivedAt} />
    ${" "}<b>${message.author ?? ""}</b> ${message.text || `(${message.type})`}</li>`)}</ol>`;
}

function TimeLine({ entries }) {
  if (!entries.length) return html`<p class="empty">The console has seen nothing of this conversation since it was started.</p>`;
  return html`<ol class="line">${entries.map((entry) => html`<li key=${`${entry.at}${entry.kind}${entry.lane}`} class=${entry.kind === "poll" ? "poll" : ""}>
    ${entry.detail ? html`<${EventLine} event=${entry} />` : html`<${Moment} at=${entry.at} /> ${inWords(entry)}`}</li>`)}</ol>`;
}

function inWords(entry) {
  if (entry.kind !== "poll") return entry.status && entry.status !== 200 ? `${entry.kind}, answered ${entry.status}` : entry.kind;
  if (entry.state === "idle") return "nothing waits";
  return `${entry.state}: ${entry.count} waiting${entry.frozen ? `, ${entry.frozen} taken` : ""}, because of ${becauseOf(entry)}`;
}
