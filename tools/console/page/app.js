// The page: its header, its problems and its views.

import { html, render, useEffect, useRef } from "./vendor/htm-preact.js";
import { Chats } from "./chat.js";
import { ConversationDialog } from "./conversation.js";
import { clock, useRunning } from "./format.js";
import { Health } from "./health.js";
import { keep, restore } from "./kept.js";
import { Live } from "./live.js";
import { addressed, ageMs, changed, connect, isFresh, useStore } from "./store.js";

const VIEWS = { chat: ["Chat", Chats], live: ["Live", Live], health: ["Health", Health] };
let shown = "chat"; // the view, also below a conversation

function App() {
  const store = useStore();
  const main = useRef(null);
  useEffect(() => {
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  if (!store.hello) return html`<p class="loading">Waiting for the console …</p>`;
  const conversation = addressed();
  if (location.hash.slice(1) in VIEWS) shown = location.hash.slice(1);
  const [, View] = VIEWS[shown];
  const skip = (event) => main.current.focus(event.preventDefault());
  // The reader may have left by another address already.
  const close = () => addressed() === conversation && (location.hash = shown);
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="top">
      <h1>Message buffer <span class="stage">${store.hello.stage}</span></h1>
      <nav aria-label="Views">${Object.entries(VIEWS).map(([name, [title]]) => html`
        <a key=${name} href=${`#${name}`} aria-current=${name === shown ? "page" : null}>${title}</a>`)}</nav>
      <div class="flags">
        ${!store.hello.allowChanges && html`<span class="flag">read-only</span>`}
        ${!store.hello.showWords && html`<span class="flag">words hidden</span>`}
        <${Age} />
      </div>
    </header>
    <${Problems} store=${store} />
    <main class="view" ref=${main} tabindex="-1"><${View} store=${store} /></main>
    ${conversation && html`<${ConversationDialog} key=${conversation} conversation=${conversation} store=${store} close=${close} />`}
    <div class="toast" role="status" aria-live="polite">${store.toast?.text}</div>
  `;
}

// Whether the page knows what the stage does, and how old that is.
function Age() {
  const place = useRef(null);
  useRunning(() => {
    const age = ageMs();
    const since = age == null ? "" : ` since ${clock.format(Date.now() - age)}`;
    const text = isFresh() ? `connected, data ${Math.floor(age / 1000)} s old` : `not connected${since}`;
    if (place.current.textContent !== text) place.current.textContent = text;
    place.current.className = `flag ${isFresh() ? "good" : "bad"}`;
  }, []);
  return html`<span ref=${place}></span>`;
}

function Problems({ store }) {
  const found = new Set([
    !store.connected && "The console's server does not answer. Its terminal may say why.",
    store.stage?.problem,
    store.busProblem,
  ].filter(Boolean));
  return found.size > 0 && html`<div class="problems" role="alert">${[...found].map((text) => html`<p key=${text}>${text}</p>`)}</div>`;
}

restore();
document.addEventListener("visibilitychange", () => document.hidden && keep());
connect();
render(html`<${App} />`, document.getElementById("app"));
