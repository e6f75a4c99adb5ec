// Times and numbers as people read them, in the reader's own zone.

import { html, useEffect, useRef } from "./vendor/htm-preact.js";

const exact = new Intl.DateTimeFormat(undefined, {
  dateStyle: "medium", timeStyle: "medium",
});
// The reader's locale decides between 12 and 24 hours, here and on the chart's axis.
const clock = new Intl.DateTimeFormat(undefined, {
  hour: "numeric", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3,
});
const minutes = new Intl.DateTimeFormat(undefined, { hour: "numeric", minute: "2-digit" });

export const timeOf = (ms) => (ms == null ? "–" : clock.format(ms));
export const minuteOf = (ms) => minutes.format(ms);
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

// The end of a hold, and the time that is left until then.
export function Until({ at }) {
  const place = useRef(null);
  useRunning(() => {
    if (place.current) place.current.textContent = `, for another ${duration(Math.max(at - Date.now(), 0))}`;
  }, [at]);
  return html`until <${Moment} at=${at} /><span class="countdown" ref=${place}></span>`;
}

export function Moment({ at }) {
  return html`<time title=${exactly(at)} datetime=${iso(at)}>${timeOf(at)}</time>`;
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

export const LAYERS = { defaults: "the product's defaults", deployed: "the deployment (cdk.json)", stage: "the rules of the stage" };
// A layer of rules in words, for example "the rules of tenant acme".
export function layerOf(layer) {
  const [kind, ...name] = String(layer ?? "").split(":");
  return LAYERS[layer] ?? (name.length ? `the rules of the ${kind} ${name.join(":")}` : kind);
}

// Why a batch is due, or was emitted, in a few words, with the rule that set its due time and the wait.
export function becauseOf({ why, reason }) {
  if (!why) return reason ?? "–";
  return why.rule.endsWith("Ms") ? `${why.label} (${why.rule}, ${duration(why.waitMs)})` : why.label;
}
