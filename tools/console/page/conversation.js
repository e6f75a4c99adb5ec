// One conversation: its state, its time line, its rules, and what an operator may do.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { Countdown, Moment, Until, becauseOf, duration, layerOf, messagesOf } from "./format.js";
import { ask } from "./store.js";

const ACTIONS = {
  flush: ["Flush", "The waiting messages become due now, and their batch is emitted at once. A hold stays for later messages."],
  hold: ["Hold", "No batch is emitted until the hold ends, or until an operator resumes the conversation. Messages are kept."],
  resume: ["Resume", "All holds end, and the waiting messages become due now."],
  cancel: ["Cancel", "The waiting messages are dropped for good, and consumers get an event about it. This cannot be undone."],
};
const LOGS_EVERY_MS = 5_000;
const HOLDS = [[15 * 60_000, "15 minutes"], [3_600_000, "an hour"], [8 * 3_600_000, "8 hours"], [24 * 3_600_000, "24 hours"]];

export function ConversationDialog({ conversation, store, close }) {
  const dialog = useRef(null);
  const [shown, setShown] = useState(null);
  const [tab, setTab] = useState("line");
  const newest = store.events.find((event) => event.detail.conversationId === conversation)?.at;
  const reading = useRef({ isUnderWay: false, isAskedAgain: false }).current;
  // Never ask twice at the same time. On a busy stage the questions would pile up, and later ones wait behind them.
  const read = async () => {
    reading.isAskedAgain = reading.isUnderWay;
    if (reading.isUnderWay) return;
    reading.isUnderWay = true;
    do {
      reading.isAskedAgain = false;
      const found = await ask("conversation", { conversation });
      if (found) setShown(found);
    } while (reading.isAskedAgain);
    reading.isUnderWay = false;
  };
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  useEffect(() => {
    read();
    const again = setInterval(read, 3000);
    return () => clearInterval(again);
  }, [conversation, newest]);
  return html`<dialog ref=${dialog} class="conversation" aria-labelledby="its-name" onClose=${close}>
    <header><h2 id="its-name">${conversation}</h2><button class="plain" onClick=${() => dialog.current.close()}>Close</button></header>
    ${!shown ? html`<p class="empty">Looking …</p>` : html`
      <p class="why">${shown.why?.text ?? "Nothing waits."}</p>
      <${Facts} shown=${shown} />
      ${shown.dynamodb && html`<h3>In the DynamoDB lane</h3><${Facts} shown=${shown.dynamodb} />`}
      ${store.hello.allowChanges && html`<${Actions} conversation=${conversation} shown=${shown} read=${read} />`}
      <div class="tabs small" role="group" aria-label="What to show">
        ${[["line", "Time line"], ["messages", "Messages"], ["rules", "Rules"]].map(([name, title]) =>
          html`<button key=${name} aria-pressed=${tab === name} onClick=${() => setTab(name)}>${title}</button>`)}</div>
      ${tab === "line" && html`<${TimeLine} entries=${shown.timeLine} conversation=${conversation} withLogs=${store.hello.isLocal} newest=${newest} />`}
      ${tab === "messages" && html`<${Messages} shown=${shown} words=${store.hello.showWords} />`}
      ${tab === "rules" && html`<${Rules} conversation=${conversation} inWords=${store.hello.rulesInWords} />`}`}
  </dialog>`;
}

// What an operator may do. Each action asks first.
function Actions({ conversation, shown, read }) {
  const [asked, setAsked] = useState(null);
  const [holdMs, setHoldMs] = useState(HOLDS[1][0]);
  const act = async (operation) => {
    setAsked(null);
    await ask("operate", { conversation, operation, ...(operation === "hold" ? { holdMs } : {}) });
    read();
  };
  return html`<div class="actions" role="group" aria-label="Actions">
    ${Object.entries(ACTIONS).map(([name, [title]]) => html`<button key=${name} disabled=${isPointless(name, shown)} onClick=${() => setAsked(name)}>${title}</button>`)}</div>
    ${asked && html`<div class="question" role="alertdialog" aria-label="Confirm"><p>${ACTIONS[asked][1]}</p>
      ${asked === "hold" && html`<label>For <select value=${holdMs} onChange=${(event) => setHoldMs(Number(event.target.value))}>
        ${HOLDS.map(([ms, text]) => html`<option key=${ms} value=${ms}>${text}</option>`)}</select></label>${" "}`}
      <button onClick=${() => act(asked)}>${ACTIONS[asked][0]} now</button>
      <button class="plain" onClick=${() => setAsked(null)}>Do nothing</button></div>`}`;
}

// The stage would refuse these, because nothing waits or there is no hold.
function isPointless(name, shown) {
  const parts = [shown, shown.dynamodb].filter(Boolean);
  if (name === "resume") return !parts.some((each) => each.heldUntil);
  return name !== "hold" && !parts.some((each) => each.count || each.batch);
}

function Facts({ shown }) {
  const facts = [
    ["State", shown.heldUntil && shown.state === "pending" ? "on hold" : shown.state], ["Messages", shown.count], ["Due", shown.dueAt && html`<${Countdown} at=${shown.dueAt} /> (<${Moment} at=${shown.dueAt} />)`],
    ["Because of", shown.rule && html`${shown.reason} <code>${shown.rule}</code>`], ["First waiting", shown.firstAt && html`<${Moment} at=${shown.firstAt} />`],
    ["Last message", html`<${Moment} at=${shown.lastAt} />`],
    ["Hold", shown.holds.length ? shown.holds.map((hold) => html`<div key=${hold.holder}>${hold.holder} (${hold.cause}), <${Until} at=${hold.until} /></div>`) : "none"],
    ...(shown.replyUntil ? [["Free replies until", html`<${Moment} at=${shown.replyUntil} /> (<${Countdown} at=${shown.replyUntil} />); later the platform refuses ordinary replies until the customer writes again`]] : []),
    ["Taken batch", shown.batch ? `${shown.batch.batchId}, attempt ${shown.batch.attempt}, ${messagesOf(shown.batch.count)}` : "none"],
    ["Generation", shown.generation],
  ];
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value ?? "–"}</dd></div>`)}</dl>`;
}

function TimeLine({ entries, conversation, withLogs, newest }) {
  const [lines, setLines] = useState([]);
  const [logs, setLogs] = useState(withLogs);
  useEffect(() => {
    if (!logs) return undefined;
    const read = () => ask("logs", { conversation }).then((found) => found && setLines(found.lines));
    read();
    const again = setInterval(read, LOGS_EVERY_MS);
    return () => clearInterval(again);
  }, [conversation, logs, newest]);
  const all = [...entries, ...(logs ? lines : [])].sort((a, b) => a.at - b.at);
  return html`
    ${withLogs && html`<label class="note"><input type="checkbox" checked=${logs} onChange=${() => setLogs(!logs)} /> with the functions' log lines
      (a run's lines appear when the run has ended)</label>`}
    ${!all.length && html`<p class="empty">The console has seen nothing of this conversation since it was started.</p>`}
    <ol class="line">${all.map((entry, place) => html`<li key=${place} class=${entry.line ? "logged" : entry.kind === "poll" ? "poll" : ""}>
      <${Moment} at=${entry.at} /> ${entry.line ? html`<${LogLine} entry=${entry} />` : entry.kind === "poll" ? seen(entry) : described(entry)}</li>`)}</ol>`;
}

const NOT_NEWS = new Set(["level", "message", "timestamp", "service", "conversation", "conversations", "requestId", "batch", "cold_start"]);

function LogLine({ entry }) {
  const { level, message } = entry.line;
  const facts = Object.entries(entry.line).filter(([name, value]) => !NOT_NEWS.has(name) && value !== 0 && value !== false && value !== null);
  return html`<b>${entry.role}</b>${level === "INFO" ? "" : ` ${level}`}: ${String(message)} <code>${facts.map(([name, value]) =>
    `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`).join(" ")}</code>`;
}

const seen = (entry) => entry.state === "idle" ? "nothing waits" : `${entry.state}: ${entry.count} waiting${entry.frozen ? `, ${entry.frozen} taken` : ""}, because of ${becauseOf(entry)}`;

function described(entry) {
  const parts = [entry.kind.replace("messages.", "")];
  if (entry.count) parts.push(messagesOf(entry.count));
  if (entry.reason) parts.push(`because of ${becauseOf(entry)}`);
  if (entry.lateMs != null) parts.push(`${duration(entry.lateMs)} after it was due`);
  if (entry.attempt > 1) parts.push(`attempt ${entry.attempt}`);
  if (entry.status && entry.status !== 200) parts.push(`answered ${entry.status}`);
  return `${parts.join(", ")}${entry.why ? `. ${entry.why.text}` : ""}`;
}

function Messages({ shown, words }) {
  if (!words) return html`<p class="empty">People's words are hidden. Start the console with <code>--show-words</code> to see them.</p>`;
  const all = [...(shown.messages ?? []), ...(shown.dynamodb?.messages ?? [])];
  if (!all.length) return html`<p class="empty">No message waits.</p>`;
  return html`<ol class="messages">${all.map((message, place) => html`<li key=${place}><${Moment} at=${message.receivedAt} />
    ${" "}<b>${message.author ?? ""}</b> ${message.text || `(${message.type})`}</li>`)}</ol>`;
}

function Rules({ conversation, inWords }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    ask("rules", { conversation }).then(setFound);
  }, [conversation]);
  if (!found) return html`<p class="empty">Looking …</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Rules"><table><thead><tr><th scope="col">Rule</th><th scope="col">Value</th>
    <th scope="col">Decided by</th></tr></thead><tbody>${Object.entries(found.rules).map(([name, why]) => html`<tr key=${name} class=${why.layer === "defaults" ? "" : "set"}>
      <td>${name}<small>${inWords[name]}</small></td><td>${JSON.stringify(why.value)}</td><td>${layerOf(why.layer)}${why.version ? `, version ${why.version}` : ""}</td></tr>`)}</tbody></table>
    ${found.skipped.map((each) => html`<p key=${each.layer}>Not in force: ${each.layer}: ${each.reason}</p>`)}</div>`;
}
