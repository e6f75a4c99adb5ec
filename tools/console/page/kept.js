// Keeps in the tab's own storage what a reload would forget: the chats, what is being typed, and the newest scenario.

import { newChat, state } from "./store.js";

// The address has the console's token, so another console on this port has another name.
const NAME = location.pathname;
const NOT_KEPT = ["refresh", "last", "buffer", "newestBatch"];

export function keep() {
  const { chats, searched, played } = state;
  try {
    sessionStorage.setItem(NAME, JSON.stringify({ chats, searched, played }, (name, value) => (NOT_KEPT.includes(name) ? undefined : value)));
  } catch {
    // The storage is full, or the browser allows none.
  }
}

export function restore() {
  const { chats = [], played, ...others } = JSON.parse(sessionStorage.getItem(NAME) ?? "{}");
  const revived = (kept) => {
    const items = kept.items.map((item) => (item.kind === "unsent" ? { ...item, problem: item.problem || "The page was loaded again before the answer came." } : item));
    return Object.assign(newChat(kept.customer, kept.pane), kept, { items });
  };
  Object.assign(state, others, { chats: chats.map(revived) });
  if (played) state.played = { ...played, state: played.state === "playing" ? "stopped" : played.state };
}
