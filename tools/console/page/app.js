// The page: its header, its problems and its views.

import { html, render, useEffect, useState } from "./vendor/htm-preact.js";
import { Chats } from "./chat.js";
import { ConversationDialog } from "./conversation.js";
import { Health } from "./health.js";
import { Live } from "./live.js";
import { changed, connect, useStore } from "./store.js";

const VIEWS = { chat: ["Chat", Chats], live: ["Live", Live], health: ["Health", Health] };

function App() {
  const store = useStore();
  const [chosen, choose] = useState(null);
  useEffect(() => {
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  if (!store.hello) return html`<p class="loading">Waiting for the console …</p>`;
  const asked = location.hash.slice(1);
  const shown = asked in VIEWS ? asked : "chat";
  const [, View] = VIEWS[shown];
  return html`
    <header class="top">
      <h1>Message buffer <span class="stage">${store.hello.stage}</span></h1>
      <nav aria-label="Views">${Object.entries(VIEWS).map(([name, [title]]) => html`
        <a key=${name} href=${`#${name}`} aria-current=${name === shown ? "page" : null}>${title}</a>`)}</nav>
      <div class="flags">
        ${!store.hello.allowChanges && html`<span class="flag">read-only</span>`}
        ${!store.hello.showWords && html`<span class="flag">words hidden</span>`}
        <span class=${`flag ${store.connected ? "good" : "bad"}`}>${store.connected ? "connected" : "not connected"}</span>
      </div>
    </header>
    <${Problems} store=${store} />
    <main class="view"><${View} store=${store} choose=${choose} /></main>
    ${chosen && html`<${ConversationDialog} key=${chosen} conversation=${chosen} store=${store} close=${() => choose(null)} />`}
    <div class="toast" role="status" aria-live="polite">${store.toast?.text}</div>
  `;
}

function Problems({ store }) {
  const found = new Set([
    !store.connected && "The console's server does not answer. Its terminal may say why.",
    store.stage?.problem,
    store.busProblem,
  ].filter(Boolean));
  return found.size > 0 && html`<div class="problems" role="alert">${[...found].map((text) => html`<p key=${text}>${text}</p>`)}</div>`;
}

connect();
render(html`<${App} />`, document.getElementById("app"));
