// The API of the server, with the key of this tab where one is needed.

const KEY = "genius-key";

export class Problem extends Error {
  constructor(status, detail) { super(detail); this.status = status; }
}

export function key() { return sessionStorage.getItem(KEY) || ""; }

export function useKey(value) {
  if (value) sessionStorage.setItem(KEY, value); else sessionStorage.removeItem(KEY);
}

async function call(path, options = {}) {
  const headers = new Headers(options.headers);
  if (key()) headers.set("Authorization", `Bearer ${key()}`);
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "The server does not answer.");
  }
  if (response.ok) return response;
  let detail = `The server answered ${response.status}.`;
  try { detail = (await response.json()).detail || detail; } catch { /* no JSON: the status has to do */ }
  throw new Problem(response.status, detail);
}

const itemPath = (id) => `/v1/items/${encodeURIComponent(id)}`;

// A search: fields that are empty are left out, so that the server's defaults hold.
export async function search(fields, signal) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) {
    if (value !== null && value !== undefined && value !== "") form.append(name, value);
  }
  return (await call("/v1/search", { method: "POST", body: form, signal })).json();
}

export async function add({ id, text, image }) {
  const form = new FormData();
  form.append("id", id);
  if (text) form.append("text", text);
  if (image) form.append("image", image, image.name || "picture");
  const answer = await (await call("/v1/items", { method: "POST", body: form })).json();
  if (answer.skipped.length) throw new Problem(422, answer.skipped[0].reason);
  return answer;
}

export async function item(id) { return (await call(itemPath(id))).json(); }

export async function remove(id) { await call(itemPath(id), { method: "DELETE" }); }

export async function stats() { return (await call("/v1/stats")).json(); }

export async function codes(prefix) {
  return (await call(`/v1/codes?prefix=${prefix.join(",")}`)).json();
}

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
