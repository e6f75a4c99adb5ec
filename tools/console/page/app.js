// The page: its header, its problems and its tabs.

import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ConversationDialog } from "./conversation.js";
import { Health } from "./health.js";
import { Live } from "./live.js";
import { Simulator } from "./simulator.js";
import { changed, connect, isPlaying, useStore } from "./store.js";

const TABS = [
  ["simulator", "Simulator", Simulator],
  ["live", "Live", Live],
  ["health", "Health", Health],
];

function App() {
  const store = useStore();
  const [tab, setTab] = useState(location.hash.slice(1) || "simulator");
  const [chosen, setChosen] = useState(null);
  const tabs = useRef(null);
  const known = TABS.some(([name]) => name === tab) ? tab : "simulator";
  const View = TABS.find(([name]) => name === known)[2];
  const show = (name) => {
    history.replaceState(null, "", `#${name}`);
    setTab(name);
  };
  const onKey = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = TABS.findIndex(([name]) => name === known);
    const next = (at + step + TABS.length) % TABS.length;
    show(TABS[next][0]);
    tabs.current.children[next].focus();
  };
  if (!store.hello) return html`<p class="loading">${store.connected ? "Loading …" : "Waiting for the console …"}</p>`;
  return html`
    <header class="top">
      <h1>Message buffer <span class="stage">${store.hello.stage}</span></h1>
      <div role="tablist" aria-label="Views" class="tabs" ref=${tabs} onKeyDown=${onKey}>
        ${TABS.map(([name, title]) => html`
          <button key=${name} role="tab" id=${`tab-${name}`} aria-selected=${name === known} aria-controls="view"
            tabindex=${name === known ? 0 : -1} onClick=${() => show(name)}>${title}</button>`)}
      </div>
      <${Flags} store=${store} />
    </header>
    <${Problems} store=${store} />
    <main id="view" role="tabpanel" aria-labelledby=${`tab-${known}`} class=${`view ${known}`}>
      <${View} store=${store} choose=${setChosen} />
    </main>
    ${chosen && html`<${ConversationDialog} key=${chosen} conversation=${chosen} store=${store} close=${() => setChosen(null)} />`}
    <div class="toast" role="status" aria-live="polite">${store.toast?.text}</div>
  `;
}

function Flags({ store }) {
  const [theme, setTheme] = useState(null);
  useEffect(() => {
    if (theme) document.documentElement.dataset.theme = theme;
  }, [theme]);
  useEffect(() => {
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", changed);
    return () => media.removeEventListener("change", changed);
  }, []);
  const isDark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  return html`<div class="flags">
    ${!store.hello.allowChanges && html`<span class="flag">read-only</span>`}
    ${!store.hello.showWords && html`<span class="flag">words hidden</span>`}
    <span class=${`flag ${store.connected ? "good" : "bad"}`}>${store.connected ? "connected" : "not connected"}</span>
    <button class="plain" onClick=${() => setTheme(isDark ? "light" : "dark")}
      aria-label=${isDark ? "Use light colours" : "Use dark colours"}>${isDark ? "Light" : "Dark"}</button>
  </div>`;
}

function Problems({ store }) {
  const found = [...new Set([
    !store.connected && "The console's server does not answer. Its terminal may say why.",
    store.stage?.problem && `${store.stage.problem}${store.stage.isOutage && isPlaying(store.played) ? " The scenario starts Valkey again." : ""}`,
    store.busProblem,
  ].filter(Boolean))];
  return found.length ? html`<div class="problems" role="alert">${found.map((text) => html`<p key=${text}>${text}</p>`)}</div>` : null;
}

connect();
render(html`<${App} />`, document.getElementById("app"));
