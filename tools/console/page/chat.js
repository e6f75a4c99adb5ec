// A chat as on a phone, and beside it the buffer of its conversation.

import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { EventLine, WhyLate } from "./events.js";
import { Conversation, Countdown, Lateness, Moment, batchInWords, duration, lateClass, messagesOf, useRunning } from "./format.js";
import { Played, Scenarios } from "./scenarios.js";
import { act, again, changed, discard, isFresh, isOpen, newChat, retry, state } from "./store.js";

const NAMES = { generic: "Generic", whatsapp: "WhatsApp" };
const ACCOUNTS = { generic: "shop", whatsapp: "106540352242922" };
const TYPING_EVERY_MS = 2000;
const OVERDUE_MS = 1000;
// On a narrow page, what is not needed for writing is folded.
const isWide = matchMedia("(min-width: 700px)").matches;

const newUser = () => String(Math.floor(1e9 + Math.random() * 9e9));
const newCustomer = (platform) => ({ platform, account: ACCOUNTS[platform], user: newUser(), tenant: null });

export function Chats({ store }) {
  const platforms = store.stage?.platforms ?? {};
  const first = "whatsapp" in platforms ? "whatsapp" : Object.keys(platforms)[0];
  const addChat = () => {
    state.chats.push(newChat(newCustomer(first)));
    changed();
  };
  useEffect(() => {
    if (!state.chats.length && first) addChat();
  }, [first]);
  if (!store.hello.allowChanges) {
    return html`<p class="empty">This console only reads. Start it with <code>--allow-changes</code> to write to the stage as
      a customer.</p>`;
  }
  if (!first && !store.chats.length) return html`<p class="empty">${store.stage?.status ? "The stage's platforms have no secrets, so this page cannot write." : "Looking …"}</p>`;
  return html`
    <${Scenarios} store=${store} platforms=${platforms} isWide=${isWide} />
    ${store.played && isWide && html`<${Played} played=${store.played} />`}
    <div class="chats">
      ${store.chats.map((chat) => html`<${Chat} key=${chat.pane} chat=${chat} platforms=${platforms} />`)}
      ${store.chats.length < 2 && html`<button class="second" onClick=${addChat}>Add a second customer</button>`}
    </div>
    ${store.played && !isWide && html`<${Played} played=${store.played} />`}`;
}

function Chat({ chat, platforms }) {
  const { platform, user } = chat.customer;
  const can = (kind) => (platforms[platform] ?? []).includes(kind);
  const last = chat.items.findLast((item) => item.kind === "sent");
  return html`<section class="chat" aria-label=${`Customer ${NAMES[platform] ?? platform}, ${user}`}>
    <${Who} chat=${chat} platforms=${platforms} />
    <div class="pair">
      <${Phone} key=${`${chat.pane} ${platform} ${user}`} chat=${chat} can=${can} />
      <${Buffer} chat=${chat} />
    </div>
    <div class="actions" role="group" aria-label="Other things that a customer does">
      ${can("file") && html`<button onClick=${() => act(chat, "file")}>Send a picture</button>`}
      ${can("voice") && html`<button onClick=${() => act(chat, "voice")}>Send a voice note</button>`}
      ${can("button") && html`<button onClick=${() => act(chat, "button", { text: "Yes" })}>Press “Yes”</button>`}
      ${can("typing") && html`<button onClick=${() => act(chat, "typing")}>Type</button>`}
      <button onClick=${() => again(chat, last)} disabled=${!last}>Deliver the last one again</button>
    </div>
  </section>`;
}

function Who({ chat, platforms }) {
  const become = (change) => {
    // Since the page was drawn, the pane may have got another customer, or may have gone. A browser reports a change even
    // of a field that is being removed.
    const place = state.chats.findIndex((each) => each.pane === chat.pane);
    if (place < 0) return;
    const customer = { ...state.chats[place].customer, ...change };
    if (change.platform) customer.account = ACCOUNTS[change.platform];
    if (customer.platform !== "generic") customer.tenant = null;
    state.chats[place] = Object.assign(newChat(customer, chat.pane), { draft: state.chats[place].draft });
    changed();
  };
  return html`<details class="menu" open=${isWide}><summary>Customer ${chat.customer.user}, ${NAMES[chat.customer.platform] ?? chat.customer.platform}</summary><div class="who">
    <label>Platform <select value=${chat.customer.platform} onChange=${(event) => become({ platform: event.target.value, user: newUser() })}>
      ${Object.keys(platforms).map((each) => html`<option key=${each} value=${each}>${NAMES[each] ?? each}</option>`)}
    </select></label>
    <${Field} label="Account" size="14" value=${chat.customer.account} use=${(account) => become({ account: account || "shop" })} />
    <${Field} label="Customer" size="11" value=${chat.customer.user} use=${(user) => become({ user: user || newUser() })} />
    ${chat.customer.platform === "generic" && html`<${Field} label="Tenant" size="8" placeholder="default" value=${chat.customer.tenant ?? ""}
      use=${(tenant) => become({ tenant: tenant || null })} />`}
    <button class="plain" onClick=${() => become({ user: newUser() })}>New customer</button>
  </div></details>`;
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

function Phone({ chat, can }) {
  const list = useRef(null);
  useEffect(() => {
    list.current.scrollTop = list.current.scrollHeight;
  }, [chat.items.map((item) => item.status ?? item.problem).join()]);
  return html`<div class="phone">
    <div class="screen" ref=${list} tabindex="0" role="log" aria-label="Messages">
      ${chat.items.map((item, place) => html`<${Item} key=${place} item=${item} chat=${chat} can=${can} />`)}
      ${!chat.items.length && html`<p class="empty">Write as this customer. Send several short messages, as people do.</p>`}
    </div>
    <${Compose} chat=${chat} can=${can} />
  </div>`;
}

// The line in which the reader writes as the customer, or edits a message. An edit leaves what was being written as it is.
function Compose({ chat, can }) {
  const { edit } = chat;
  const input = useRef(null);
  const lastTyping = useRef(0);
  useEffect(() => {
    if (edit) input.current.focus();
  }, [edit?.messageId]);
  const end = () => {
    chat.edit = null;
    changed();
  };
  const send = (event) => {
    event.preventDefault();
    // What is drawn may be older than this.
    const { edit, draft } = chat;
    const text = edit ? edit.text : draft;
    if (!text.trim()) return;
    if (edit) act(chat, edit.kind, { messageId: edit.messageId, text });
    else act(chat, "text", { text });
    if (!edit) chat.draft = "";
    end();
  };
  const type = (value) => {
    const { edit } = chat;
    if (edit) edit.text = value;
    else chat.draft = value;
    changed();
    if (can("typing") && !edit && chat.items.length && Date.now() - lastTyping.current > TYPING_EVERY_MS) {
      lastTyping.current = Date.now();
      act(chat, "typing");
    }
  };
  return html`<form onSubmit=${send} onKeyDown=${(event) => event.key === "Escape" && end()} class="compose">
    <input ref=${input} aria-label="Message" placeholder="Message" maxlength="4000" value=${edit ? edit.text : chat.draft} onInput=${(event) => type(event.target.value)}
      autocomplete="off" />
    <button type="submit">${edit ? "Edit" : "Send"}</button>
  </form>`;
}

function Item({ item, chat, can }) {
  const edit = () => {
    chat.edit = { kind: item.what === "voice" ? "transcript" : "edit", messageId: item.messageId, text: item.text };
    changed();
  };
  const sendAgain = html`<span class="tools"><button class="plain" onClick=${() => retry(chat, item)}>Send again</button>
    <button class="plain" onClick=${() => discard(chat, item)}>Discard</button></span>`;
  switch (item.kind) {
    case "unsent":
      return (item.isNew || item.problem) && html`<div class="bubble mine refused"><p>${textOf({ ...item.wish, what: item.wish.kind })}</p>
        <small>${item.problem ? `${item.isNew ? "" : `${item.wish.kind}, `}not sent: ${item.problem}` : "sending …"}</small>
        ${item.problem && sendAgain}</div>`;
    case "sent":
      return html`<div class=${`bubble mine ${item.status === 200 ? "" : "refused"} ${isOpen(item) ? "waits" : ""}`}>
        <p>${item.isGone ? html`<s>${textOf(item)}</s>` : textOf(item)}</p>
        <small><${Moment} at=${item.at} />${item.mark ? ` · ${item.mark}` : ""} · ${outcome(item)}</small>
        ${isOpen(item) && html`<span class="tools">
          ${can("edit") && ["text", "voice"].includes(item.what) && html`<button class="plain" onClick=${edit}>${item.what === "voice" ? "Transcribe" : "Edit"}</button>`}
          ${can("delete") && html`<button class="plain" onClick=${() => act(chat, "delete", { messageId: item.messageId })}>Delete</button>`}
        </span>`}
        ${item.status !== 200 && sendAgain}
      </div>`;
    case "reply":
      return html`<div class="bubble theirs"><p>${item.text}</p><small><${Moment} at=${item.at} /></small></div>`;
    case "batch":
      return html`<p class=${`divider batch ${lateClass(item)}`}>One batch of ${batchInWords(item)} <${Lateness} event=${item} /></p>`;
    default:
      return html`<p class="divider note">${item.text}</p>`;
  }
}

const textOf = (item) => item.text || ({ file: "(a picture)", voice: "(a voice note)" })[item.what] || item.what;

const REFUSALS = { 429: "refused by a quota; send it again later", 503: "refused for now; send it again later" };

function outcome(item) {
  if (item.status !== 200) return `${REFUSALS[item.status] ?? "refused"}: ${item.status}`;
  if (item.answer.stopped) return "stop word";
  if (item.answer.flushed) return "flush word";
  return `accepted in ${item.tookMs} ms`;
}

function Buffer({ chat }) {
  const waiting = chat.items.filter(isOpen);
  const last = chat.items.findLast((item) => item.kind === "batch");
  const buffer = chat.buffer?.count > 0 && chat.buffer.dueAt ? chat.buffer : null;
  return html`<div class="buffer" aria-label="The buffer">
    <h3>Buffer</h3>
    ${buffer ? html`
      <p class="due">Due <${Countdown} at=${buffer.dueAt} stale="at" /> <span class="at"><${Moment} at=${buffer.dueAt} /></span></p>
      <${Track} first=${buffer.firstAt ?? waiting[0]?.at} due=${buffer.dueAt} marks=${waiting.map((item) => item.at)} />
      <p class="why" role="status">${buffer.why?.text ?? "…"}</p>
      <${Overdue} at=${buffer.dueAt} conversation=${chat.conversation} />
      <ol class="fragments">${waiting.map((item) => html`<li key=${item.messageId}><${Moment} at=${item.at} /> ${textOf(item)}</li>`)}</ol>`
    : html`<p class="empty">Nothing waits.</p>`}
    ${last && html`<div class="last"><h3>Last batch</h3>
      ${last.why && html`<p>${last.why.text}</p>`}
      <${EventLine} key=${last.id} event=${{ ...last, kind: "messages.batch.ready" }} />
      <p class="id">${last.detail.batchId}</p></div>`}
    ${chat.conversation && html`<${Conversation} id=${chat.conversation}>Time line of<small>${chat.conversation}</small><//>`}
  </div>`;
}

// Appears when a batch has been overdue for a second.
function Overdue({ at, conversation }) {
  const place = useRef(null);
  useRunning(() => {
    if (place.current) place.current.hidden = !isFresh() || Date.now() - at < OVERDUE_MS;
  }, [at]);
  return html`<div ref=${place} hidden><p class="late">The batch is overdue.</p><${WhyLate} wish=${{ conversation }}>Why is it late?<//></div>`;
}

// From the first message to the due time: a mark for each message, and a bar that runs until the batch is due.
function Track({ first, due, marks }) {
  const bar = useRef(null);
  const span = Math.max(due - first, 1);
  const share = (at) => Math.min(Math.max((at - first) / span, 0), 1);
  useRunning(() => {
    if (bar.current && isFresh()) bar.current.style.width = `${100 * share(Date.now())}%`;
  }, [first, due]);
  return html`<div class="track" role="img" aria-label=${`${messagesOf(marks.length)}; due ${duration(due - first)} after the first`}>
    <div class="run" ref=${bar}></div>
    ${marks.map((at, place) => html`<i key=${place} style=${{ left: `${100 * share(at)}%` }}></i>`)}
    <span class="flagpole"></span>
  </div>`;
}
