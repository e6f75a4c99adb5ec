// The stage's events: a line each, which opens. In it are the causes of a late batch, and the event as JSON.

import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { Conversation, Lateness, Moment, batchInWords, inCode, lateClass } from "./format.js";
import { ask, say, state } from "./store.js";

export const isBatch = (event) => event.kind === "messages.batch.ready";

export function EventLine({ event, conversation, children }) {
  const [isOpen, setOpen] = useState(false);
  const words = isBatch(event) ? batchInWords(event) : event.detail.reason ?? event.detail.change;
  return html`<details class="event" onToggle=${(toggled) => setOpen(toggled.target.open)}>
    <summary><${Moment} at=${event.at} /> <${Lateness} event=${event} /> ${children}
      ${" "}<b>${event.kind.replace("messages.", "")}</b>${words ? `, ${words}` : ""}${conversation && html`<small>${conversation}</small>`}</summary>
    ${isOpen && html`<div class="opened">
      ${isBatch(event) && event.why && html`<p>${event.why.text}</p>`}
      ${conversation && html`<p><${Conversation} id=${conversation}>Open the conversation<//></p>`}
      ${lateClass(event) && html`<${WhyLate} wish=${{ batchId: event.detail.batchId }}>Why was it late?<//>`}
      <${AsJson} id=${event.id} name=${event.detail.batchId ?? event.kind} /></div>`}
  </details>`;
}

// Asks why a batch was late, or why one that waits is. The server reads the stage's logs for it, so only at a click.
export function WhyLate({ wish, children }) {
  const [found, setFound] = useState(null);
  const look = async () => {
    setFound({ summary: "Looking …" });
    setFound(await ask("why", wish));
  };
  return html`<div class="causes"><button onClick=${look}>${children}</button>
    <div role="status">${found && html`<p><b>${found.problem ?? found.summary}</b> ${found.due}</p>
      <ol>${found.causes?.map((cause, place) => html`<li key=${place} class=${cause.kind === "unknown" ? "soft" : ""}>${inCode(cause.text)}
        ${cause.from.length > 0 && html`<small>Read from ${inCode(cause.from.join("; "))}.</small>`}</li>`)}</ol>`}</div></div>`;
}

// The event as a consumer gets it, to look at, to keep as a fixture, and to send to a consumer under development.
function AsJson({ id, name }) {
  const [text, setText] = useState(null);
  const address = `event/${encodeURIComponent(id)}`;
  useEffect(() => {
    fetch(address).then(async (answer) => setText(answer.ok ? await answer.text() : ""), () => setText(""));
  }, [id]);
  if (!text) return html`<p class="empty">${text == null ? "Looking …" : "The console keeps only the newest events with their JSON, and not this one."}</p>`;
  const copy = (copied, what) => navigator.clipboard.writeText(copied).then(() => say(`${what} copied.`), () => say("The browser refuses to copy."));
  // In one line, and of ASCII only, so that a shell takes it as it is.
  const body = `<<'EVENT'\n${JSON.stringify(JSON.parse(text)).replace(/[\u007f-\uffff]/g, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`)}\nEVENT\n`;
  return html`<div class="actions" role="group" aria-label="The event as JSON">
      <button onClick=${() => copy(text, "JSON")}>Copy JSON</button>
      <a class="button" href=${address} download=${`${name}.json`}>Download JSON</a>
      <button onClick=${() => copy(`curl "$CONSUMER" -H 'Content-Type: application/json' --data-binary @- ${body}`, "curl")}>Copy as curl</button>
      <button onClick=${() => copy(`aws sqs send-message --queue-url "$QUEUE" --message-body file:///dev/stdin ${body}`, "Command")}>Copy as aws sqs</button></div>
    <p class="empty">Both commands bring the event to your own consumer: at the address <code>$CONSUMER</code>, or in the queue
      ${" "}<code>$QUEUE</code>. A consumer that remembers batch ids takes it for a repeat, unless you change <code>batchId</code>.
      ${!state.hello.showWords && " People's words are left out here, so the event is not whole."}</p>
    <pre tabindex="0" aria-label="JSON">${text}</pre>`;
}
