// A chat as on a phone, and beside it the buffer of its conversation.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { Countdown, Moment, becauseOf, duration, messagesOf, useRunning } from "./format.js";
import { ask, chatOf, changed, isOpen, isOwn, isPlaying, newChat, state } from "./store.js";

const NAMES = {
  generic: "Generic", whatsapp: "WhatsApp", messenger: "Messenger", instagram: "Instagram", twilio: "Twilio SMS",
  telegram: "Telegram",
};
const ACCOUNTS = {
  generic: "shop", whatsapp: "106540352242922", messenger: "1700000000001", instagram: "1780000000001",
  twilio: "15558675310", telegram: "bot",
};

const newUser = () => String(Math.floor(1e9 + Math.random() * 9e9));
const newCustomer = (platform) => ({ platform, account: ACCOUNTS[platform] ?? "shop", user: newUser(), tenant: null });

export function Simulator({ store, choose }) {
  const platforms = Object.keys(store.hello.platforms);
  const first = platforms.includes("whatsapp") ? "whatsapp" : platforms[0];
  useEffect(() => {
    if (!state.chats.length && first) {
      chatOf(newCustomer(first));
      changed();
    }
  }, [first]);
  if (!store.hello.allowChanges) {
    return html`<p class="empty">This console only reads. Start it with <code>--allow-changes</code> to write to the stage as
      a customer.</p>`;
  }
  if (!first) {
    return html`<p class="empty">${store.hello.problem ?? "The simulator cannot send yet, because the stage's platforms have no secrets."}</p>`;
  }
  return html`
    <${Scenarios} store=${store} />
    <div class="chats">
      ${store.chats.map((chat) => html`<${Chat} key=${chat.pane} chat=${chat} store=${store} choose=${choose} />`)}
      ${store.chats.length < 2 && html`<button class="second" onClick=${() => {
        chatOf(newCustomer(first));
        changed();
      }}>Add a second customer</button>`}
    </div>`;
}

function Scenarios({ store }) {
  const playing = isPlaying(store.played);
  // Another page's scenario can be stopped here, but its steps are shown there.
  const played = store.played && isOwn(store.played) ? store.played : null;
  const play = (name) => {
    const run = String(Math.floor(1e8 + Math.random() * 9e8));
    sessionStorage.setItem("run", run);
    ask("play", { name, run });
  };
  return html`<section class="scenarios" aria-labelledby="play">
    <h2 id="play">Play a scenario</h2>
    ${store.hello.scenarios.map((each) => html`<button key=${each.name} title=${each.about} disabled=${!!playing}
      onClick=${() => play(each.name)}>${each.title}</button>`)}
    ${playing && html`<button class="plain" onClick=${() => ask("stop")}>Stop</button>`}
    <p class="note" role="status">${played ? STATES[played.state](played) : ""}</p>
    ${played && html`<${Played} played=${played} figures=${store.batches} />`}
  </section>`;
}

// The steps of the newest scenario, and what came of them. They stay until the next scenario is played.
function Played({ played, figures }) {
  const list = useRef(null);
  useEffect(() => {
    list.current.scrollTop = list.current.scrollHeight;
  }, [played.steps.length, played.state]);
  return html`<div class="played" role="region" aria-label=${`Scenario: ${played.title}`}>
    <h3>${played.title}</h3>
    <p>${played.about}</p>
    ${played.warning && html`<p class="warning">${played.warning}</p>`}
    <div class="steps" ref=${list} tabindex="0" role="log" aria-label="Steps"><ol>
      ${linesOf(played.steps).map((line) => html`<li key=${line.from} value=${line.to}><${Moment} at=${line.at} />
        ${line.count > 1 ? ` ${line.count} ×` : ""} ${line.note}${line.problem && html` <b class="problem">${line.problem}</b>`}</li>`)}
    </ol></div>
    <div class="result">
      ${played.takenBack.map((sentence) => html`<p key=${sentence}>${sentence}</p>`)}
      ${played.problem && html`<p class="problem">${played.problem}</p>`}
      ${played.state === "ended" && html`<p><b>What you should have seen:</b> ${played.result}</p>
        <p><b>What came:</b> ${cameOf(played, figures)} ${played.asExpected ? "That is as expected."
          : "That differs. Perhaps other rules apply here, or somebody else changed what waited, or a function's first start took some seconds, or the console missed events."}</p>`}
    </div>
  </div>`;
}

const STATES = {
  playing: ({ title, steps, of }) => `${title} ${steps.length ? `plays: step ${steps.length} of ${of}.` : "begins in some seconds."}`,
  waiting: ({ title }) => `${title}: all steps are done. Now wait for what comes of them.`,
  ended: ({ title, asExpected }) => `${title} has ended. What came ${asExpected ? "is as expected" : "differs from what you should have seen"}.`,
  stopped: ({ title }) => `${title} was stopped.`,
};

// Return the lines of the steps. Equal steps that follow each other share one line.
function linesOf(steps) {
  const lines = [];
  steps.forEach((step, place) => {
    const last = lines.at(-1);
    if (last && last.note === step.note && !step.problem && !last.problem) Object.assign(last, { count: last.count + 1, to: place + 1 });
    else lines.push({ ...step, count: 1, from: place + 1, to: place + 1 });
  });
  return lines;
}

// The figures of a batch say why it was emitted, as the chat does. Its reason is less exact.
function cameOf({ batches, events }, figures) {
  const whys = Object.fromEntries(figures.map(({ batchId, why }) => [batchId, why]));
  const each = batches.map((batch) => `${messagesOf(batch.messages)} because of ${whys[batch.batchId] ?? batch.reason}${batch.lane === "dynamodb" ? ", by the DynamoDB lane" : ""}`);
  const others = events.map((type) => `, and an event ${type}`);
  return `${batches.length} ${batches.length === 1 ? "batch" : "batches"}${each.length ? ` (${each.join("; ")})` : ""}${others.join("")}.`;
}

function Chat({ chat, store, choose }) {
  const name = `${NAMES[chat.customer.platform] ?? chat.customer.platform}, ${chat.customer.user}`;
  return html`<section class="chat" aria-label=${`Customer ${name}`}>
    <${Who} chat=${chat} store=${store} />
    <div class="pair">
      <${Phone} key=${chat.key} chat=${chat} store=${store} name=${name} />
      <${Buffer} chat=${chat} store=${store} choose=${choose} />
    </div>
  </section>`;
}

function Who({ chat, store }) {
  const become = (change) => {
    // Since the page was drawn, the pane may have got another customer, or may have gone. A browser reports a change even
    // of a field that is being removed.
    const place = state.chats.findIndex((each) => each.pane === chat.pane);
    if (place < 0) return;
    const before = state.chats[place].customer;
    const platform = change.platform ?? before.platform;
    const account = change.account ?? (change.platform ? ACCOUNTS[platform] ?? "shop" : before.account);
    const customer = { ...before, ...change, platform, account };
    if (platform !== "generic") customer.tenant = null;
    state.chats[place] = newChat(customer, chat.pane);
    changed();
  };
  return html`<div class="who">
    <label>Platform <select value=${chat.customer.platform} onChange=${(event) => become({ platform: event.target.value, user: newUser() })}>
      ${Object.keys(store.hello.platforms).map((each) => html`<option key=${each} value=${each}>${NAMES[each] ?? each}</option>`)}
    </select></label>
    <${Field} label="Account" size="14" value=${chat.customer.account} use=${(account) => become({ account: account || "shop" })} />
    <${Field} label="Customer" size="11" value=${chat.customer.user} use=${(user) => become({ user: user || newUser() })} />
    ${chat.customer.platform === "generic" && html`<${Field} label="Tenant" size="8" placeholder="default" value=${chat.customer.tenant ?? ""}
      use=${(tenant) => become({ tenant: tenant || null })} />`}
    <button class="plain" onClick=${() => become({ user: newUser() })}>New customer</button>
  </div>`;
}

// A field whose text is used when the reader leaves it. Until then, drawing the page again keeps what is being typed.
function Field({ label, value, use, ...others }) {
  const [draft, setDraft] = useState(null);
  return html`<label>${label} <input ...${others} value=${draft ?? value} onInput=${(event) => setDraft(event.target.value)}
    onChange=${(event) => {
      use(event.target.value);
      setDraft(null);
    }} /></label>`;
}

function Phone({ chat, store, name }) {
  const list = useRef(null);
  const kinds = store.hello.platforms[chat.customer.platform] ?? [];
  const can = (kind) => kinds.includes(kind);
  const [chosen, choose] = useState(null);
  // The message that the reader edits. A message of another customer is out of sight.
  const edited = chat.items.includes(chosen) ? chosen : null;
  const last = useRef(Promise.resolve());
  // Send a webhook only after the answer to the one before it, which it might overtake otherwise.
  const act = (kind, fields = {}) => {
    last.current = last.current.then(() => ask("act", { ...chat.customer, kind, ...fields }));
    return last.current;
  };
  useEffect(() => {
    list.current.scrollTop = list.current.scrollHeight;
  }, [chat.items.length]);
  return html`<div class="phone">
    <div class="screen" ref=${list} tabindex="0" role="log" aria-label=${`Messages of ${name}`}>
      ${chat.items.map((item, place) => html`<${Item} key=${place} item=${item} can=${can} act=${act} edit=${choose} />`)}
      ${!chat.items.length && html`<p class="empty">Write as this customer. Send several short messages, as people do.</p>`}
    </div>
    <${Compose} chat=${chat} can=${can} act=${act} edited=${edited} end=${() => choose(null)} />
    <div class="actions" role="group" aria-label="Other things that a customer does">
      ${can("file") && html`<button onClick=${() => act("file")}>Send a picture</button>`}
      ${can("voice") && html`<button onClick=${() => act("voice")}>Send a voice note</button>`}
      ${can("button") && html`<button onClick=${() => act("button", { text: "Yes" })}>Press “Yes”</button>`}
      ${can("typing") && html`<button onClick=${() => act("typing")}>Type</button>`}
      ${can("again") && html`<button onClick=${() => act("again")} disabled=${!chat.items.some((item) => item.kind === "sent")}>
        Deliver the last one again</button>`}
      <button onClick=${() => act("text", { text: "stop" })} title="Drops the waiting messages, if the rules name “stop” as a stop word">Write “stop”</button>
    </div>
  </div>`;
}

// The line in which the reader writes as the customer, or edits a message.
function Compose({ chat, can, act, edited, end }) {
  const [text, setText] = useState("");
  const input = useRef(null);
  const lastTyping = useRef(0);
  useEffect(() => {
    if (!edited) return undefined;
    setText(edited.text);
    input.current.focus();
    return () => setText("");
  }, [edited]);
  const send = (event) => {
    event.preventDefault();
    if (!text.trim()) return;
    if (edited) act("edit", { messageId: edited.messageId, text });
    else act("text", { text });
    setText("");
    end();
  };
  const typing = (value) => {
    setText(value);
    if (can("typing") && !edited && chat.items.length && Date.now() - lastTyping.current > 2000) {
      lastTyping.current = Date.now();
      act("typing");
    }
  };
  return html`<form onSubmit=${send} onKeyDown=${(event) => event.key === "Escape" && end()} class="compose">
    <input ref=${input} aria-label="Message" placeholder="Message" maxlength="4000" value=${text} onInput=${(event) => typing(event.target.value)}
      autocomplete="off" />
    <button type="submit">${edited ? "Edit" : "Send"}</button>
  </form>`;
}

function Item({ item, can, act, edit }) {
  switch (item.kind) {
    case "sent":
      return html`<div class=${`bubble mine ${item.status === 200 ? "" : "refused"} ${isOpen(item) ? "waits" : "gone"}`}>
        <p>${item.mark?.startsWith("deleted") || item.mark === "dropped" ? html`<s>${item.text || what(item)}</s>` : item.text || what(item)}</p>
        <small><${Moment} at=${item.at} />${item.mark ? ` · ${item.mark}` : ""}${item.status === 200 ? outcome(item) : ` · ${REFUSALS[item.status] ?? "refused"}: ${item.status}`}</small>
        ${isOpen(item) && item.what === "text" && html`<span class="tools">
          ${can("edit") && html`<button class="plain" onClick=${() => edit(item)}>Edit</button>`}
          ${can("delete") && html`<button class="plain" onClick=${() => act("delete", { messageId: item.messageId })}>Delete</button>`}
        </span>`}
      </div>`;
    case "human_reply":
      return html`<div class="bubble theirs human-agent"><p>${item.text}</p><small><${Moment} at=${item.at} /> · a human agent${
        item.status === 200 ? "" : ` · ${REFUSALS[item.status] ?? "refused"}: ${item.status}`}</small></div>`;
    case "reply":
      return html`<div class="bubble theirs"><p>${item.text}</p><small><${Moment} at=${item.at} /></small></div>`;
    case "batch":
      return html`<p class="divider batch">One batch of ${messagesOf(item.count)}, because of ${becauseOf(item)}${item.lateMs == null ? "" : `, ${duration(item.lateMs)} after it was due`}${item.attempt > 1 ? `, attempt ${item.attempt}` : ""}</p>`;
    default:
      return html`<p class="divider">${item.text}</p>`;
  }
}

const what = (item) => ({ file: "(a picture)", voice: "(a voice note)", button: "(a button)" })[item.what] ?? item.what;

const REFUSALS = { 429: "refused by a quota; send it again later", 503: "refused for now; send it again later" };

function outcome(item) {
  const counts = item.answer ?? {};
  if (counts.stopped) return " · stop word";
  if (counts.flushed) return " · flush word";
  if (counts.duplicates) return " · duplicate";
  return ` · accepted in ${item.tookMs} ms`;
}

function Buffer({ chat, store, choose }) {
  const buffer = store.buffers[chat.conversation];
  const waiting = chat.items.filter(isOpen);
  const last = chat.items.findLast((item) => item.kind === "batch");
  const waits = buffer && buffer.count > 0 && buffer.dueAt;
  return html`<div class="buffer" aria-label="The buffer">
    <h3>Buffer</h3>
    ${waits ? html`
      <p class="due">Due <${Countdown} at=${buffer.dueAt} /> <span class="at"><${Moment} at=${buffer.dueAt} /></span></p>
      <${Track} first=${buffer.firstAt ?? waiting[0]?.at} due=${buffer.dueAt} marks=${waiting.map((item) => item.at)} />
      <p class="why" role="status">${buffer.why?.text ?? "…"}</p>
      <${Overdue} at=${buffer.dueAt} />
      <ol class="fragments">${waiting.map((item) => html`<li key=${item.messageId}><${Moment} at=${item.at} /> ${item.text || what(item)}</li>`)}</ol>`
    : html`<p class="empty">${waiting.length && store.stage?.isOutage ? `In Valkey, ${messagesOf(waiting.length)} of this customer ${waiting.length === 1 ? "waits" : "wait"} until it answers again.`
      : "Nothing waits."}</p>`}
    ${last && html`<div class="last"><h3>Last batch</h3>
      <p>${messagesOf(last.count)}, because of ${becauseOf(last)}, <b>${duration(last.lateMs)}</b> after it was due.</p>
      ${last.why && html`<p>${last.why.text}</p>`}
      <p class="id">${last.batchId}</p></div>`}
    ${chat.conversation && html`<button class="plain name" onClick=${() => choose(chat.conversation)}>Time line and rules of<small>${chat.conversation}</small></button>`}
  </div>`;
}

// Appears when a batch has been overdue for a second, because the first start of a function takes about as long.
function Overdue({ at }) {
  const place = useRef(null);
  useRunning(() => {
    if (place.current) place.current.hidden = Date.now() - at < 1000;
  }, [at]);
  return html`<p class="late" ref=${place} hidden>The batch is emitted as soon as a processor takes it. The first start of a processor takes some seconds.</p>`;
}

// From the first message to the due time: a mark for each message, and a bar that runs until the batch is due.
function Track({ first, due, marks }) {
  const bar = useRef(null);
  const span = Math.max(due - first, 1);
  const share = (at) => Math.min(Math.max((at - first) / span, 0), 1);
  useRunning(() => {
    if (bar.current) bar.current.style.width = `${100 * share(Date.now())}%`;
  }, [first, due]);
  return html`<div class="track" role="img" aria-label=${`${messagesOf(marks.length)}; due ${duration(due - first)} after the first`}>
    <div class="run" ref=${bar}></div>
    ${marks.map((at, place) => html`<i key=${place} style=${{ left: `${100 * share(at)}%` }}></i>`)}
    <span class="flagpole"></span>
  </div>`;
}
