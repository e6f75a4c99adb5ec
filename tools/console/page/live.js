// The next open conversations by due time.

import { html, useMemo, useState } from "./vendor/htm-preact.js";
import { Countdown, Moment, becauseOf, messagesOf, partsOf } from "./format.js";

const ROWS = 200;

export function Live({ store, choose }) {
  const [filter, setFilter] = useState({ tenant: "", platform: "", agent: "", user: "" });
  const stage = store.stage;
  const all = stage?.conversations ?? [];
  const rows = useMemo(
    () => all.map((row) => ({ ...row, ...partsOf(row.conversation) })).filter((row) =>
      (!filter.tenant || row.tenant.includes(filter.tenant)) && (!filter.platform || row.platform === filter.platform)
      && (!filter.agent || row.agent === filter.agent) && (!filter.user || row.conversation.includes(filter.user))).slice(0, ROWS),
    [all, filter]);
  const platforms = [...new Set(all.map((row) => partsOf(row.conversation).platform))].sort();
  const agents = [...new Set(all.map((row) => row.agent).filter(Boolean))].sort();
  const change = (name) => (event) => setFilter({ ...filter, [name]: event.target.value });
  return html`
    <${Totals} stage=${stage} />
    <div class="filters" role="search">
      <label>Tenant <input value=${filter.tenant} onInput=${change("tenant")} /></label>
      <label>Platform <select value=${filter.platform} onChange=${change("platform")}>
        <option value="">all</option>${platforms.map((each) => html`<option key=${each}>${each}</option>`)}</select></label>
      <label>Agent <select value=${filter.agent} onChange=${change("agent")} title="The agent that owns the account">
        <option value="">all</option>${agents.map((each) => html`<option key=${each}>${each}</option>`)}</select></label>
      <label>Name contains <input value=${filter.user} onInput=${change("user")} /></label>
      <span class="count">${rows.length} of ${stage?.open ?? 0}${stage?.more ? " or more" : ""} shown, the earliest due first</span>
    </div>
    <div class="scroll" tabindex="0" role="region" aria-label="Open conversations">
      <table>
        <thead><tr><th scope="col">Due</th><th scope="col">Conversation</th><th scope="col">State</th><th scope="col" class="n">Messages</th>
          <th scope="col">Because of</th><th scope="col">Lane</th></tr></thead>
        <tbody>${rows.map((row) => html`<tr key=${`${row.lane}/${row.conversation}`}>
          <td><${Countdown} at=${row.dueAt} /></td>
          <td><button class="plain name" onClick=${() => choose(row.conversation)}>${row.user}
            <small>${row.tenant} · ${row.platform} · ${row.account}${row.agent ? ` · agent ${row.agent}` : ""}</small></button></td>
          <td><span class=${`state ${row.state}`}>${row.reason === "hold" && row.state === "pending" ? "on hold" : row.state}</span></td>
          <td class="n">${row.count}${row.frozen ? ` + ${row.frozen} taken` : ""}</td>
          <td>${becauseOf(row)}</td><td>${row.lane}</td></tr>`)}</tbody>
      </table>
      ${!rows.length && html`<p class="empty">${stage ? "Nothing waits." : "Looking …"}</p>`}
    </div>
    <${Events} store=${store} choose=${choose} />`;
}

function Totals({ stage }) {
  const status = stage?.status;
  const cells = [
    ["Open", stage ? `${stage.open}${stage.more ? "+" : ""}` : "–"],
    ["Scheduled", status?.pending ?? "–"],
    ["In flight", status?.inflight ?? "–"],
    ["Open in DynamoDB", status?.windows?.open ?? "–"],
    ["Dead letters", stage?.letters?.inQueue ?? "–"],
  ];
  return html`<dl class="totals">${cells.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function Events({ store, choose }) {
  return html`<section class="events"><h2>Events</h2><ol>
    ${store.events.slice(0, 50).map((event, place) => html`<li key=${`${event.at}${place}`}>
      <${Moment} at=${event.at} /> <b>${event.type.replace("messages.", "")}</b>
      ${" "}<button class="plain" onClick=${() => choose(event.detail.conversationId)}>${event.detail.conversationId}</button>
      ${event.detail.messageCount ? ` ${messagesOf(event.detail.messageCount)}` : ""}</li>`)}
    ${!store.events.length && html`<li class="empty">No event has come since this page was opened.</li>`}</ol></section>`;
}
