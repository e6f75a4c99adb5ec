// What is wrong with the stage, processors, the batches of the last minutes, how often authors go on, and dead letters.

import { html, useEffect } from "./vendor/htm-preact.js";
import { EventLine, isBatch } from "./events.js";
import { Conversation, Moment, Table, Totals, duration, inCode, partsOf, until } from "./format.js";
import { ask, changed, state } from "./store.js";

const MINUTES = 15;
const BATCHES_SHOWN = 10;
const REPORT_EVERY_MS = 60_000;
const HEARTBEAT_MS = 6_000;
const SIZES = [[1, "1"], [3, "2–3"], [5, "4–5"], [10, "6–10"], [Infinity, "more than 10"]];
const WAITS = [[1000, "up to 1 s"], [3000, "up to 3 s"], [10_000, "up to 10 s"], [30_000, "up to 30 s"], [Infinity, "longer"]];
const LATENESS = [[100, "up to 0.1 s"], [1000, "up to 1 s"], [10_000, "up to 10 s"], [Infinity, "longer"]];

export function Health({ store }) {
  return html`
    <${Doctor} report=${store.doctor} />
    <${Processors} status=${store.stage?.status} now=${store.stage?.readAt} />
    <${Batches} events=${store.events} />
    <${GoingOn} report=${store.tune} />
    <${Letters} letters=${store.stage?.letters} />`;
}

// Keep a report up to date while it is shown. The server asks the stage for it at most once a minute.
function useReport(name) {
  useEffect(() => {
    const read = async () => {
      state[name] = { ...state[name], problem: null, ...(await ask(name, {})) };
      changed();
    };
    read();
    const again = setInterval(read, REPORT_EVERY_MS);
    return () => clearInterval(again);
  }, []);
}

// What `bufferctl doctor` finds.
function Doctor({ report }) {
  useReport("doctor");
  const unread = Object.entries(report?.unread ?? {}).map(([name, reason]) => `${name} (${reason})`);
  return html`<section class="doctor"><h2>Findings</h2>
    ${!report && html`<p class="empty">Looking …</p>`}
    ${report?.problem && html`<p class="problem">${report.problem}</p>`}
    ${report?.findings?.map(({ severity, what, do: remedy }) => html`<p key=${what} class="finding"><b class=${severity}>${severity}</b> ${inCode(what)}<small>${inCode(remedy)}</small></p>`)}
    ${report?.at && html`${!report.findings.length && html`<p>Nothing is wrong with what could be read.</p>`}
      <p class="empty">Read at <${Moment} at=${report.at} />, at most once a minute.${unread.length > 0 && ` Not read: ${unread.join("; ")}.`}</p>`}</section>`;
}

function Processors({ status, now }) {
  if (!status) return html`<section><h2>Processors</h2><p class="empty">Looking …</p></section>`;
  return html`<section><h2>Processors</h2>
    <${Table} name="Processors" heads=${["Shard", "Processor", "Scheduled", "In flight", "Next due", "Overdue"]} rows=${(status.shards ?? []).map((each) =>
      ({ cells: [each.shard, processor(each, now), each.pending, each.inflight, until(each.nextDueAt, now), duration(each.overdueMs)] }))} />
    ${status.windows && html`<p>DynamoDB lane: ${status.windows.open} open, next due ${until(status.windows.nextDueAt, now)}, overdue
      ${" "}${duration(status.windows.overdueMs)}.</p>`}</section>`;
}

const processor = (shard, now) =>
  shard.heartbeatAt && now - shard.heartbeatAt < HEARTBEAT_MS
    ? `runs, heartbeat ${until(shard.heartbeatAt, now)}`
    : shard.pending ? "none runs now; one will start before the next batch is due" : "none is needed: nothing waits";

function Batches({ events }) {
  const all = events.filter(isBatch);
  const recent = all.filter((each) => each.at > Date.now() - MINUTES * 60_000);
  const waits = sorted(recent.map((each) => each.detail.metadata?.waitMs ?? 0));
  const sizes = sorted(recent.map((each) => each.detail.messageCount ?? 0));
  const late = sorted(recent.map((each) => each.lateMs ?? 0));
  const totals = [
    ["Batches", recent.length], ["Late, p50", duration(share(late, 0.5))], ["Late, p99", duration(share(late, 0.99))],
    ["Waited, p50", duration(share(waits, 0.5))], ["Messages, p50", share(sizes, 0.5) ?? "–"], ["Messages, most", sizes.at(-1) ?? "–"],
    ["Second attempts", recent.filter((each) => each.detail.attempt > 1).length],
  ];
  return html`<section><h2>Batches of the last ${MINUTES} minutes</h2>
    <${Totals} cells=${totals} />
    <div class="events">${all.slice(0, BATCHES_SHOWN).map((event) => html`<${EventLine} key=${`${event.at}${event.id}`} event=${event} conversation=${event.conversation} />`)}</div>
    ${recent.length ? html`<div class="charts">
      <${Bars} title="Reasons" counts=${byCount(recent.map((each) => each.why?.label ?? each.detail.flushReason))} />
      <${Bars} title="Lateness" counts=${byClass(late, LATENESS)} />
      <${Bars} title="Messages in a batch" counts=${byClass(sizes, SIZES)} />
      <${Bars} title="Wait of the first message" counts=${byClass(waits, WAITS)} /></div>`
    : html`<p class="empty">No batch has come yet.</p>`}</section>`;
}

const sorted = (numbers) => numbers.sort((a, b) => a - b);
const share = (numbers, part) => numbers[Math.min(Math.floor(numbers.length * part), numbers.length - 1)];
const byClass = (numbers, classes) => classes
  .map(([most, name], place) => [name, numbers.filter((each) => each <= most && !(each <= classes[place - 1]?.[0])).length])
  .filter(([, count]) => count);

function byCount(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  return [...counts].sort((a, b) => b[1] - a[1]);
}

function Bars({ title, counts }) {
  const most = Math.max(...counts.map(([, n]) => n), 1);
  return html`<figure><figcaption>${title}</figcaption>
    <dl>${counts.map(([name, n]) => html`<div key=${name}><dt>${name}</dt><dd><i style=${{ width: `${(100 * n) / most}%` }}></i><span>${n}</span></dd></div>`)}</dl></figure>`;
}

function GoingOn({ report }) {
  useReport("tune");
  const rows = report?.scopes?.map(({ scope, batches, few, share, low, high }) => {
    const { tenant, platform, account: agent } = partsOf(scope);
    const rate = few ? `${batches} batches, too few` : `${percent(share)} (${percent(low)} to ${percent(high)}) of ${batches.toLocaleString()} batches`;
    return { key: scope, cells: [tenant, platform, agent || "–", rate] };
  });
  return html`<section><h2>Going on</h2>
    <p>The share of batches after which the author wrote again within 8 s and before an answer, with its 95 % interval. A longer wait cuts fewer
      ${" "}batches: <code>bufferctl tune --tenant …</code> recommends one.</p>
    ${report?.problem && html`<p class="problem">${report.problem}</p>`}
    ${rows ? html`<${Table} name="Going on" heads=${["Tenant", "Platform", "Agent", "Goes on"]} rows=${rows} empty="No batches were counted." />
      <p class="empty">At most 20 rows, those with the most batches of the last 4 weeks.</p>` : !report?.problem && html`<p class="empty">Looking …</p>`}</section>`;
}

const percent = (share) => `${Math.round(100 * share)} %`;

function Letters({ letters }) {
  if (!letters?.letters?.length) {
    return html`<section><h2>Dead letters</h2><p class="empty">${letters ? `${letters.inQueue || "None"} in the queue.` : "Looking …"}</p></section>`;
  }
  return html`<section><h2>Dead letters</h2>
    <${Table} name="Dead letters" heads=${["Batch", "Conversation", "Reason"]} rows=${letters.letters.map((each) =>
      ({ cells: [html`<code>${each.batchId ?? "unreadable"}</code>`, each.conversationId ? html`<${Conversation} id=${each.conversationId} />` : "–", each.reason ?? "–"] }))} />
    <p><code>bufferctl dead redrive</code> sends a batch again.</p></section>`;
}
