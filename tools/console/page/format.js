// Times and numbers as people read them, in the reader's own zone.

import { html, useEffect, useRef } from "./vendor/htm-preact.js";
import { addressOf, isFresh } from "./store.js";

const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
// The reader's locale decides between 12 and 24 hours.
export const clock = new Intl.DateTimeFormat(undefined, {
  hour: "numeric", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3,
});

export const exactly = (ms) => (ms == null ? "" : `${exact.format(ms)} (${ms})`);

export function duration(ms) {
  if (ms == null) return "–";
  const size = Math.abs(ms);
  if (size < 1000) return `${Math.round(ms)} ms`;
  if (size < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  if (size < 3_600_000) return `${Math.floor(ms / 60_000)} min${size % 60_000 < 500 ? "" : ` ${Math.round((size % 60_000) / 1000)} s`}`;
  return `${(ms / 3_600_000).toFixed(1)} h`;
}

export function until(ms, now = Date.now()) {
  if (ms == null) return "–";
  const left = ms - now;
  return left >= 0 ? `in ${duration(left)}` : `${duration(-left)} ago`;
}

const LATE_MS = 1000;
const VERY_LATE_MS = 10_000;

// One loop updates all running times ten times a second, without drawing the page again.
const running = new Set();
setInterval(() => {
  if (!document.hidden) for (const step of running) step();
}, 100);

export function useRunning(step, deps) {
  useEffect(() => {
    step();
    running.add(step);
    return () => running.delete(step);
  }, deps);
}

// The time that is left or has passed, updated as it runs. Its title is the exact time. While the page does not know what
// the stage does, it is the time of day.
export function Countdown({ at, stale = `at ${clock.format(at)}` }) {
  const place = useRef(null);
  useRunning(() => {
    if (!place.current) return;
    const text = isFresh() || at == null ? until(at) : stale;
    if (place.current.textContent !== text) place.current.textContent = text;
    const lateMs = isFresh() && at != null ? Date.now() - at : 0;
    place.current.className = `countdown ${lateMs > VERY_LATE_MS ? "very late" : lateMs > LATE_MS ? "late" : ""}`;
  }, [at]);
  return html`<time class="countdown" ref=${place} title=${exactly(at)} datetime=${iso(at)}></time>`;
}

export function Moment({ at }) {
  return html`<time title=${exactly(at)} datetime=${iso(at)}>${at == null ? "–" : clock.format(at)}</time>`;
}

function iso(ms) {
  const time = ms == null ? null : new Date(ms);
  return time && !Number.isNaN(time.getTime()) ? time.toISOString() : null;
}

// The parts of a conversation's name, unescaped.
export function partsOf(conversation) {
  const plain = (part = "") => part.replaceAll("%2F", "/").replaceAll("%25", "%");
  const [tenant, platform, account, ...user] = conversation.split("/");
  return { tenant: plain(tenant), platform: plain(platform), account: plain(account), user: plain(user.join("/")) };
}

export const messagesOf = (count) => `${count} ${count === 1 ? "message" : "messages"}`;

// Why a batch is due, or was emitted, in a few words, with the rule that set its due time and the wait.
export function becauseOf({ why, reason }) {
  if (!why) return reason ?? "–";
  return why.rule.endsWith("Ms") ? `${why.label} (${why.rule}, ${duration(why.waitMs)})` : why.label;
}

// A batch in a line: its size, its reason, and how late it came.
export function batchInWords({ detail, why, lateMs }) {
  const reason = becauseOf({ why, reason: detail.flushReason });
  const late = lateMs == null ? "" : `, ${duration(lateMs)} after it was due`;
  return `${messagesOf(detail.messageCount)}, because of ${reason}${late}${detail.attempt > 1 ? `, attempt ${detail.attempt}` : ""}`;
}

// Says in words and by its colour that a batch was emitted late.
export const lateClass = ({ lateness }) => (["late", "very_late"].includes(lateness) ? lateness.replace("_", " ") : "");
export const Lateness = ({ event }) => lateClass(event) && html`<b class=${lateClass(event)}>${lateClass(event)}</b>`;

// Words of the server, in which commands and names stand between backticks.
export const inCode = (text) => text.split("`").map((part, place) => (place % 2 ? html`<code>${part}</code>` : part));

// A conversation's name, as a link to its own address.
export const Conversation = ({ id, children }) => html`<a class="name" href=${addressOf(id)}>${children ?? id}</a>`;

// On a phone, each row is a block in which a cell has its head's text. Such a block would be no table to a screen reader
// without these roles.
export function Table({ name, heads, rows, empty }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${name}><table role="table">
    <thead role="rowgroup"><tr role="row">${heads.map((head) => html`<th key=${head} scope="col" role="columnheader">${head}</th>`)}</tr></thead>
    <tbody role="rowgroup">${rows.map(({ key, cells }, place) => html`<tr key=${key ?? place} role="row">${cells.map((cell, column) => html`
      <td key=${column} role="cell" data-head=${heads[column]}><div>${cell}</div></td>`)}</tr>`)}</tbody></table>
    ${!rows.length && html`<p class="empty">${empty}</p>`}</div>`;
}

export const Totals = ({ cells }) => html`<dl class="totals">${cells.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
