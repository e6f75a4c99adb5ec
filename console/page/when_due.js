// Everything that decides when a batch leaves, with this conversation's values. The rule that decided is marked.

import { html, useEffect, useState } from "./vendor/htm-preact.js";
import { ask } from "./store.js";

// Each line has the server's names of its causes, the rule that it shows, and its sentence, in which `rule` returns a value.
const WAITS = {
  title: "after a pause:",
  lines: [
    [["silenceMs", "late"], "silenceMs", (rule) => html`after <b>${rule("silenceMs")}</b> of silence. Each message begins the wait again.`],
    [["typingInferenceMs"], "typingInferenceMs", (rule) => html`after <b>${rule("typingInferenceMs")}</b> instead, if the last message came
      sooner than that after the one before. A second message must come before the first wait of <b>${rule("silenceMs")}</b> is over.`],
    [["typing"], null, (rule) => html`<b>${rule(longest)}</b> after a typing event, if the platform reports that the author is typing.`],
    [["mediaSilenceMs"], "mediaSilenceMs", (rule) => html`not sooner than <b>${rule("mediaSilenceMs")}</b>, if the last message is a file without
      words: its caption may follow.`],
    [["transcriptWaitMs", "transcript"], "transcriptWaitMs", (rule) => html`when the transcript of a voice note comes, at the latest after
      <b> ${rule("transcriptWaitMs")}</b>.`],
    [["max_wait"], "maxWaitMs", (rule) => html`at the latest <b>${rule("maxWaitMs")}</b> after its first message.`],
  ],
};
const VIP = {
  title: "after a pause, because the author is a VIP:",
  lines: [
    [["vipSilenceMs", "priority", "late"], "vipSilenceMs", (rule) => html`after <b>${rule("vipSilenceMs")}</b> of silence.`],
    [["typing"], null, (rule) => html`<b>${rule("vipSilenceMs")}</b> after a typing event.`],
    [["max_wait"], "maxWaitMs", (rule) => html`at the latest <b>${rule("maxWaitMs")}</b> after its first message.`],
  ],
};
const WINDOW = {
  title: "after a fixed window:",
  lines: [[["windowMs"], "windowMs", (rule) => html`<b>${rule(shorter)}</b> after its first message, however many follow.`]],
};
const RHYTHM = [["adaptive"], "adaptive", (rule) => html`after the author's own rhythm, between <b>${rule("adaptiveFloorMs")}</b> and
  <b> ${rule("adaptiveCeilingMs")}</b>, as soon as it is known.`];
const AT_LEAST = [["minMessages"], "minMessages", (rule) => html`with fewer than <b>${rule("minMessages")}</b> messages, only then.`];
const SOONER = {
  title: "sooner:",
  lines: [
    [["pressedSilenceMs", "pressed at once"], "pressedSilenceMs", (rule) => html`${isZero(rule("pressedSilenceMs")) ? "at once" : html`<b>${rule("pressedSilenceMs")}</b>`} after
      the author has pressed a button. Messages before that keep their wait.
      ${rule("minMessages") > 1 && html` With at most <b>${rule("minMessages")}</b> messages, a press waits as if typed.`}`],
    [["max_messages", "max_bytes"], "maxMessages", (rule) => html`at once when <b>${rule("maxMessages")}</b> messages wait.`],
    [["flush", "flush word", "operator's flush", "resume"], null, (rule) => html`at once when the author writes a flush word${orNone(rule, "flushWords")}, or an operator flushes or ends a hold.`],
  ],
};
const IF_VIP = [["priority"], "vipSilenceMs", (rule) => html`${isZero(rule("vipSilenceMs")) ? "at once" : html`after <b>${rule("vipSilenceMs")}</b>`} if the
  rules make the author a VIP (this one is not).`];
const AFTER_A_HOLD = {
  title: "only after a hold, which begins when:",
  lines: [
    [["hold"], null, () => "an operator puts the conversation on hold."],
    [["takeover"], "onHumanReply", (rule, tag) => html`a person of the business answers${!tag && rule("onHumanReply") === "null" ? " (not by these rules)" : ""}.`],
  ],
};

const NEVER = {
  title: "never, because the waiting messages are dropped, when:",
  lines: [
    [["stop word"], "stopWords", (rule) => html`the author writes a stop word${orNone(rule, "stopWords")}.`],
    [["cancel"], null, () => "an operator cancels."],
  ],
};

// A language brings stop and flush words of its own.
const orNone = (rule, name) => (rule(name) || rule("controlLanguages") ? "" : " (these rules have none)");
const isZero = (shown) => shown === "0 s";
const shorter = (value) => (value("windowMs") > value("maxWaitMs") ? "maxWaitMs" : "windowMs");
const longest = (value) => (value("typingInferenceMs") > value("silenceMs") ? "typingInferenceMs" : "silenceMs");

export function WhenDue({ chat, store }) {
  const [rules, setRules] = useState(null);
  const parts = [chat.customer.tenant ?? "default", chat.customer.platform, chat.customer.account, chat.customer.user];
  const name = chat.conversation ?? parts.map((part) => part.replaceAll("%", "%25").replaceAll("/", "%2F")).join("/");
  const buffer = store.buffers[chat.conversation];
  const isWaiting = buffer?.count > 0;
  const cause = isWaiting ? buffer.why?.cause : chat.items.findLast((item) => item.kind === "batch")?.cause?.cause;
  useEffect(() => {
    let gone = false;
    ask("rules", { conversation: name }).then((found) => !gone && found && setRules(found.rules));
    return () => (gone = true);
    // Rules may change while the page is open. The server keeps an answer for some seconds.
  }, [name, cause, buffer?.dueAt]);
  return html`<section class="when" aria-label="When a batch leaves">
    <h3>When does a batch leave?</h3>
    <p>The buffer collects what a customer writes, and hands it to the agent as one batch. The batch leaves</p>
    ${rules && groupsOf(rules).map(({ title, lines }) => html`<h4>${title}</h4><ul>${lines.map(([causes, rule, text]) =>
      {
      const tag = causes.includes(cause) ? (isWaiting ? "decides now" : "decided the last batch") : null;
      return html`<${Line} key=${causes[0]} text=${text((name) => shown(rules, name), tag)} rule=${rule} tag=${tag} />`;
    })}</ul>`)}
    <p class="note">Rules can differ by tenant, agent, platform and conversation.</p>
  </section>`;
}

function Line({ text, rule, tag }) {
  return html`<li class=${tag ? "decided" : ""} aria-current=${tag ? "true" : null}>${text}${rule && html` <code>${rule}</code>`}
    ${tag && html` <span class="tag">${tag}</span>`}</li>`;
}

// Return the groups of lines that apply under these rules.
function groupsOf(rules) {
  const value = (name) => rules[name]?.value;
  const vip = value("priority") === "vip";
  if (vip || value("wait") === "window") {
    // A press counts as a typed message then.
    const sooner = { ...SOONER, lines: SOONER.lines.filter(([, rule]) => rule !== "pressedSilenceMs") };
    return [vip ? VIP : WINDOW, sooner, AFTER_A_HOLD, NEVER].map((group) => known(group, rules));
  }
  const waits = { ...WAITS, lines: WAITS.lines.filter(([[cause]]) => {
    // These waits count only if they are longer than the ordinary one, which may be shorter by rhythm.
    if (cause === "typingInferenceMs") return value(cause) > value("silenceMs");
    return !["mediaSilenceMs", "transcriptWaitMs"].includes(cause) || value("adaptive") || value(cause) >= value("silenceMs");
  }) };
  if (value("adaptive")) waits.lines = [RHYTHM, ...waits.lines];
  if (value("minMessages") > 1) waits.lines = [...waits.lines, AT_LEAST];
  return [waits, { ...SOONER, lines: [...SOONER.lines, IF_VIP] }, AFTER_A_HOLD, NEVER].map((group) => known(group, rules));
}

// Leave out the lines whose rules this stage does not have.
const known = (group, rules) => ({ ...group, lines: group.lines.filter(([, rule]) => !rule || rules[rule]) });

// Return a rule's value as people read it. `name` is the rule's name, or a function that chooses the rule by the values.
function shown(rules, name) {
  const chosen = typeof name === "function" ? name((each) => rules[each]?.value) : name;
  const value = rules[chosen]?.value;
  return chosen.endsWith("Ms") ? `${value / 1000} s` : String(value);
}
