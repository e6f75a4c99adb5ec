// The next open conversations by due time, and the newest events.

import { html, useState } from "./vendor/htm-preact.js";
import { Countdown, Moment, becauseOf, messagesOf, partsOf } from "./format.js";

const EVENTS_SHOWN = 50;

export function Live({ store, choose }) {
  const [asked, setAsked] = useState("");
  const stage = store.stage;
  const rows = (stage?.conversations ?? []).filter((row) => row.conversation.includes(asked));
  const open = (event) => {
    event.preventDefault();
    if (asked.trim()) choose(asked.trim());
  };
  return html`
    <${Totals} stage=${stage} />
    <form class="filters" role="search" onSubmit=${open}>
      <label>Conversation <input size="40" placeholder="tenant/platform/account/user" value=${asked}
        onInput=${(event) => setAsked(event.target.value)} /></label>
      <button type="submit" disabled=${!asked.trim()}>Open the one with this id</button>
      <span class="count">${rows.length} of ${stage?.open ?? 0}${stage?.more ? " or more" : ""} shown, the earliest due first</span>
    </form>
    <div class="scroll" tabindex="0" role="region" aria-label="Open conversations">
      <table>
        <thead><tr><th scope="col">Due</th><th scope="col">Conversation</th><th scope="col">State</th><th scope="col" class="n">Messages</th>
          <th scope="col">Because of</th><th scope="col">Lane</th></tr></thead>
        <tbody>${rows.map((row) => html`<${Row} key=${`${row.lane}/${row.conversation}`} row=${row} choose=${choose} />`)}</tbody>
      </table>
      ${!rows.length && html`<p class="empty">${stage?.status ? "Nothing waits." : "Looking …"}</p>`}
    </div>
    <${Events} store=${store} choose=${choose} />`;
}

function Row({ row, choose }) {
  const { tenant, platform, account, user } = partsOf(row.conversation);
  return html`<tr>
    <td><${Countdown} at=${row.dueAt} /></td>
    <td><button class="plain name" onClick=${() => choose(row.conversation)}>${user}<small>${tenant} · ${platform} · ${account}</small></button></td>
    <td>${row.reason === "hold" && row.state === "pending" ? "on hold" : row.state}</td>
    <td class="n">${row.count}${row.frozen ? ` + ${row.frozen} taken` : ""}</td>
    <td>${becauseOf(row)}</td><td>${row.lane}</td></tr>`;
}

function Totals({ stage }) {
  const status = stage?.status;
  const cells = [
    ["Open", status ? `${stage.open}${stage.more ? "+" : ""}` : "–"],
    ["Scheduled", status?.pending ?? "–"],
    ["In flight", status?.inflight ?? "–"],
    ["Open in DynamoDB", status?.windows?.open ?? "–"],
    ["Dead letters", stage?.letters?.inQueue ?? "–"],
  ];
  return html`<dl class="totals">${cells.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function Events({ store, choose }) {
  return html`<section class="events"><h2>Events</h2><ol>
    ${store.events.slice(0, EVENTS_SHOWN).map((event, place) => html`<li key=${`${event.at}${place}`}>
      <${Moment} at=${event.at} /> <b>${event.kind.replace("messages.", "")}</b>
      ${" "}<button class="plain" onClick=${() => choose(event.conversation)}>${event.conversation}</button>
      ${event.detail.messageCount ? ` ${messagesOf(event.detail.messageCount)}` : ""}</li>`)}
    ${!store.events.length && html`<li class="empty">No event has come since the console was started.</li>`}</ol></section>`;
}
