// Times and numbers as people read them, in the reader's own zone.

import { html, useEffect, useRef } from "./vendor/htm-preact.js";

const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
// The reader's locale decides between 12 and 24 hours.
const clock = new Intl.DateTimeFormat(undefined, {
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

export function until(ms) {
  if (ms == null) return "–";
  const left = ms - Date.now();
  return left >= 0 ? `in ${duration(left)}` : `${duration(-left)} ago`;
}

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

// The time that is left or has passed, updated as it runs. Its title is the exact time.
export function Countdown({ at }) {
  const place = useRef(null);
  useRunning(() => {
    if (!place.current) return;
    const text = until(at);
    if (place.current.textContent !== text) place.current.textContent = text;
    place.current.classList.toggle("late", at != null && Date.now() - at > 1000);
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
