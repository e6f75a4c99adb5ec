// The next open conversations by due time, those that the reader searches, and the newest events.

import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { EventLine } from "./events.js";
import { Conversation, Countdown, Table, Totals, becauseOf, partsOf } from "./format.js";
import { addressOf, ask, changed } from "./store.js";

const EVENTS_SHOWN = 50;
const SEARCH_AFTER_MS = 300;

export function Live({ store }) {
  const { stage } = store;
  const status = stage?.status;
  const asked = store.searched.trim();
  const [found, setFound] = useState(null);
  useEffect(() => {
    setFound(null);
    let isWanted = asked;
    setTimeout(async () => {
      const answer = isWanted && await ask("search", { text: asked });
      if (isWanted) setFound(answer);
    }, SEARCH_AFTER_MS);
    return () => {
      isWanted = false;
    };
  }, [asked]);
  const open = stage?.conversations ?? [];
  // An open one is shown as it is now.
  const rows = asked ? (found?.conversations ?? []).flatMap((each) => {
    const now = open.filter(({ conversation }) => conversation === each.conversation);
    return now.length ? now : [each];
  }) : open;
  const go = (event) => {
    event.preventDefault();
    const id = store.searched.trim();
    if (id.split("/").length === 4) location.hash = addressOf(id);
  };
  const search = (event) => changed((store.searched = event.target.value));
  return html`
    <${Totals} cells=${[["Open", status ? `${stage.open}${stage.more ? "+" : ""}` : "–"], ["Scheduled", status?.pending ?? "–"],
      ["In flight", status?.inflight ?? "–"], ["Open in DynamoDB", status?.windows?.open ?? "–"], ["Dead letters", stage?.letters?.inQueue ?? "–"]]} />
    <form class="filters" role="search" onSubmit=${go}>
      <label>Conversation <input type="search" size="40" placeholder="a part of its id, or tenant/platform/account/user" value=${store.searched} onInput=${search} /></label>
      <span class="count" role="status">${!asked ? `${rows.length} of ${stage?.open ?? 0}${stage?.more ? " or more" : ""} shown, the earliest due first`
        : found ? found.problem ?? `${rows.length}${found.more ? " or more" : ""} found` : "Looking …"}</span>
    </form>
    <${Table} name="Conversations" heads=${["Due", "Conversation", "State", "Messages", "Because of", "Lane"]} rows=${rows.map(rowOf)}
      empty=${asked ? (found ? "No conversation has such an id, among those that wait and those of which the console keeps something." : "Looking …") : status ? "Nothing waits." : "Looking …"} />
    <section class="events"><h2>Events</h2>
      ${store.events.slice(0, EVENTS_SHOWN).map((event) => html`<${EventLine} key=${`${event.at}${event.id}`} event=${event} conversation=${event.conversation} />`)}
      ${!store.events.length && html`<p class="empty">No event has come since the console was started.</p>`}</section>`;
}

function rowOf(row) {
  const { tenant, platform, account, user } = partsOf(row.conversation);
  return { key: `${row.lane}/${row.conversation}`, cells: [
    html`<${Countdown} at=${row.dueAt} />`,
    html`<${Conversation} id=${row.conversation}>${user || row.conversation}<small>${tenant} · ${platform} · ${account}</small><//>`,
    row.reason === "hold" && row.state === "pending" ? "on hold" : row.state ?? "not known",
    `${row.count ?? "–"}${row.frozen ? ` + ${row.frozen} taken` : ""}`, becauseOf(row), row.lane ?? "–",
  ] };
}
