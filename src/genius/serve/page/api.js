// The API of the server, with the key of this tab where one is needed.

const KEY = "genius-key";
const PATIENCE_MS = 40_000; // longer than a server takes for any search
const AGAIN = [0, 408, 429, 500, 502, 503, 504]; // the same request may succeed a moment later
const TRIES = 3;

export class Problem extends Error {
  constructor(status, detail) { super(detail); this.status = status; this.again = AGAIN.includes(status); }
}

export function key() { return sessionStorage.getItem(KEY) || ""; }

export function useKey(value) {
  if (value) sessionStorage.setItem(KEY, value); else sessionStorage.removeItem(KEY);
}

// One request; raises a Problem that says what is wrong, or an AbortError if `signal` ended it.
async function call(path, { signal, patience = PATIENCE_MS, ...options } = {}) {
  const headers = new Headers(options.headers);
  if (key()) headers.set("Authorization", `Bearer ${key()}`);
  const ending = new AbortController();
  const timer = setTimeout(() => ending.abort("late"), patience);
  signal?.addEventListener("abort", () => ending.abort());
  let response;
  try {
    response = await fetch(path, { ...options, headers, signal: ending.signal });
  } catch (error) {
    if (signal?.aborted) throw new DOMException("not needed any more", "AbortError");
    throw new Problem(0, ending.signal.aborted ? "The server takes too long to answer." : "The server cannot be reached.");
  } finally {
    clearTimeout(timer);
  }
  if (response.ok) return response;
  let detail = `The server answered ${response.status}.`;
  try { detail = (await response.json()).detail || detail; } catch { /* no JSON: the status has to do */ }
  throw new Problem(response.status, detail);
}

export const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// The same, tried again where a server that is starting or busy says so.
async function insist(path, options) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await call(path, options);
    } catch (error) {
      if (attempt === TRIES || ![429, 503].includes(error.status)) throw error;
      await pause(1000);
    }
  }
}

const itemPath = (id) => `/v1/items/${encodeURIComponent(id)}`;

// A search: fields that are null are left out, so that the server's defaults hold.
export async function search(fields, signal) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) {
    if (value !== null) form.append(name, value);
  }
  return (await insist("/v1/search", { method: "POST", body: form, signal })).json();
}

// Add a picture, a text or both; without an id the server names it after its content.
export async function add({ id, text, image }) {
  const form = new FormData();
  if (id) form.append("id", id);
  if (text) form.append("text", text);
  if (image) {
    form.append("image", image, image.name || "picture");
    if (image.name) form.append("meta", JSON.stringify({ name: image.name }));
  }
  const answer = await (await call("/v1/items", { method: "POST", body: form, patience: 3 * PATIENCE_MS })).json();
  if (answer.skipped.length) throw new Problem(422, answer.skipped[0].reason);
  return answer;
}

// Some stored items, as they come.
export async function items(limit) { return (await (await insist(`/v1/items?limit=${limit}`)).json()).items; }

export async function item(id) { return (await call(itemPath(id))).json(); }

export async function remove(id) { await call(itemPath(id), { method: "DELETE" }); }

export async function stats() { return (await call("/v1/stats", { patience: 10_000 })).json(); }

export async function codes(prefix) {
  return (await call(`/v1/codes?prefix=${prefix.join(",")}`)).json();
}

export const originalPath = (id) => `${itemPath(id)}/original`;

// Show the picture of an item; with a key the browser cannot fetch it by itself.
export async function showThumbnail(image, id, side) {
  const path = `${itemPath(id)}/thumbnail?side=${side}`;
  if (!key()) { image.src = path; return; }
  try {
    const blob = await (await call(path)).blob();
    const url = URL.createObjectURL(blob);
    image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
    image.src = url;
  } catch {
    image.dispatchEvent(new Event("error"));
  }
}
