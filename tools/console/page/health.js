// Processors, lateness, batches, and dead letters.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact.js";
import { Moment, duration, messagesOf, minuteOf, until } from "./format.js";
import { ask } from "./store.js";

const STEP_MS = 10_000;
const MINUTES = 15;
const HEARTBEAT_MS = 6_000;

export function Health({ store }) {
  const status = store.stage?.status;
  return html`
    <section><h2>Processors</h2>
      <div class="scroll" tabindex="0" role="region" aria-label="Processors"><table><thead><tr><th scope="col">Shard</th><th scope="col">Processor</th>
        <th scope="col" class="n">Scheduled</th><th scope="col" class="n">In flight</th><th scope="col">Next due</th><th scope="col" class="n">Overdue</th></tr></thead>
        <tbody>${(status?.shards ?? []).map((each) => html`<tr key=${each.shard}><td>${each.shard}</td><td>${processor(each)}</td>
          <td class="n">${each.pending}</td><td class="n">${each.inflight}</td><td>${until(each.nextDueAt)}</td>
          <td class=${`n ${each.overdueMs > 1000 ? "late" : ""}`}>${duration(each.overdueMs)}</td></tr>`)}</tbody></table></div>
      ${status?.windows && html`<p>DynamoDB lane: ${status.windows.open} open, next due ${until(status.windows.nextDueAt)}, overdue
        ${" "}${duration(status.windows.overdueMs)}.</p>`}
      ${!status && html`<p class="empty">Looking …</p>`}
    </section>
    <${Charts} batches=${store.batches} />
    <${Letters} store=${store} />
    <${Refusals} store=${store} />`;
}

const processor = (shard) =>
  shard.heartbeatAt && Date.now() - shard.heartbeatAt < HEARTBEAT_MS
    ? `runs, heartbeat ${until(shard.heartbeatAt)}`
    : shard.pending ? "none runs now; one will start before the next batch is due" : "none is needed: nothing waits";

function Charts({ batches }) {
  const recent = batches.filter((each) => each.at > Date.now() - MINUTES * 60_000);
  const lateness = useMemo(() => series(recent), [recent.length, recent.at(-1)?.at]);
  const waits = recent.map((each) => each.waitMs).sort((a, b) => a - b);
  const sizes = recent.map((each) => each.size ?? 0).sort((a, b) => a - b);
  const late = recent.map((each) => each.lateMs).sort((a, b) => a - b);
  return html`<section><h2>Batches of the last ${MINUTES} minutes</h2>
    <dl class="totals">
      ${[["Batches", recent.length], ["Late, p50", duration(at(late, 0.5))], ["Late, p99", duration(at(late, 0.99))],
        ["Waited, p50", duration(at(waits, 0.5))], ["Messages, p50", at(sizes, 0.5) ?? "–"], ["Messages, most", sizes.at(-1) ?? "–"],
        ["Second attempts", recent.filter((each) => each.attempt > 1).length]]
        .map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    ${recent.length ? html`<div class="charts">
      <${Chart} title="Lateness in ms, p50 and p99" data=${lateness} names=${["p50", "p99"]} />
      <${Bars} title="Reasons" counts=${count(recent, (each) => each.why)} />
      <${Bars} title="Messages in a batch" counts=${count(recent, (each) => sizeClass(each.size), SIZES)} />
      <${Bars} title="Wait of the first message" counts=${count(recent, (each) => waitClass(each.waitMs), WAITS)} /></div>`
    : html`<p class="empty">No batch has come yet. The charts begin with the first one.</p>`}</section>`;
}

const at = (sorted, share) => sorted[Math.min(Math.floor(sorted.length * share), sorted.length - 1)];
const SIZES = [[1, "1"], [3, "2–3"], [5, "4–5"], [10, "6–10"], [Infinity, "more than 10"]];
const WAITS = [[1000, "up to 1 s"], [3000, "up to 3 s"], [10_000, "up to 10 s"], [30_000, "up to 30 s"], [Infinity, "longer"]];
const classOf = (classes) => (value) => classes.find(([most]) => value <= most)[1];
const sizeClass = classOf(SIZES);
const waitClass = classOf(WAITS);

// Return names with their counts: classes in their own order, reasons by count.
function count(batches, of, classes = null) {
  const counts = new Map((classes ?? []).map(([, name]) => [name, 0]));
  for (const each of batches) counts.set(of(each), (counts.get(of(each)) ?? 0) + 1);
  const found = [...counts].filter(([, n]) => n);
  return classes ? found : found.sort((a, b) => b[1] - a[1]);
}

function series(batches) {
  const steps = new Map();
  for (const each of batches) {
    const step = Math.floor(each.at / STEP_MS) * STEP_MS;
    if (!steps.has(step)) steps.set(step, []);
    steps.get(step).push(each.lateMs);
  }
  const times = [...steps.keys()].sort((a, b) => a - b);
  const of = (share) => times.map((time) => at(steps.get(time).sort((a, b) => a - b), share));
  return [times.map((time) => time / 1000), of(0.5), of(0.99)];
}

function Chart({ title, data, names }) {
  const place = useRef(null);
  const plot = useRef(null);
  useEffect(() => {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
    plot.current = new window.uPlot({
      width: place.current.clientWidth || 420, height: 180, legend: { show: false }, cursor: { show: false },
      scales: { y: { range: (_plot, _least, most) => [0, Math.max(most * 1.1, 10)] }, x: { range: () => [Date.now() / 1000 - MINUTES * 60, Date.now() / 1000] } },
      series: [{}, { label: names[0], stroke: colour("--accent"), width: 2, points: { size: 6 } },
        { label: names[1], stroke: colour("--warn"), width: 2, points: { size: 6 } }],
      axes: [{ ...axis, values: (_plot, times) => times.map((time) => minuteOf(time * 1000)) }, { ...axis, size: 60 }],
    }, data, place.current);
    return () => plot.current.destroy();
  }, []);
  useEffect(() => plot.current?.setData(data), [data]);
  return html`<figure><figcaption>${title} <span class="key a">${names[0]}</span> <span class="key b">${names[1]}</span></figcaption>
    <div ref=${place} role="img" aria-label=${`${title}; newest ${data[1].at(-1)} and ${data[2].at(-1)}`}></div></figure>`;
}

function Bars({ title, counts }) {
  const most = Math.max(...counts.map(([, n]) => n), 1);
  return html`<figure class="bars"><figcaption>${title}</figcaption>
    <dl>${counts.map(([name, n]) => html`<div key=${name}><dt>${name}</dt><dd><i style=${{ width: `${(100 * n) / most}%` }}></i><span>${n}</span></dd></div>`)}</dl></figure>`;
}

function Letters({ store }) {
  const [asked, setAsked] = useState(null);
  const letters = store.stage?.letters;
  const redrive = async (batchId) => {
    setAsked(null);
    await ask("redrive", { batchId });
  };
  return html`<section><h2>Dead letters</h2>
    ${!letters?.letters?.length ? html`<p class="empty">${letters ? `${letters.inQueue || "None"} in the queue.` : "Looking …"}</p>` : html`
      <div class="scroll" tabindex="0" role="region" aria-label="Dead letters"><table><thead><tr><th scope="col">Batch</th><th scope="col">Conversation</th><th scope="col">Reason</th><th></th></tr></thead>
        <tbody>${letters.letters.map((each, place) => html`<tr key=${each.batchId ?? place}><td><code>${each.batchId ?? "unreadable"}</code></td>
          <td>${each.conversation ?? each.conversationId ?? "–"}</td><td>${each.reason ?? "–"}</td>
          <td>${store.hello.allowChanges && each.batchId && html`<button onClick=${() => setAsked(each.batchId)}>Send again</button>`}</td></tr>`)}</tbody></table></div>`}
    ${asked && html`<div class="question" role="alertdialog" aria-label="Confirm"><p>The batch ${asked} will be sent again under its old id. Consumers may get it
      after newer batches of its conversation.</p><button onClick=${() => redrive(asked)}>Send it again now</button>
      <button class="plain" onClick=${() => setAsked(null)}>Do nothing</button></div>`}</section>`;
}

// How the stage responded to this page's own webhooks.
function Refusals({ store }) {
  const own = Object.entries(store.refused);
  return own.length > 0 && html`<section><h2>Refused messages</h2>
    <p>Responses to this page: ${own.map(([code, n]) => `${messagesOf(n)} ${code === "429" ? "refused by a quota" : "refused"} (${code})`).join(", ")}.</p></section>`;
}
