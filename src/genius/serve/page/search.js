// The search view: what is asked, the results, and what can be done with them.

import * as api from "/page/api.js";
import { $, card, make, markShared, modalityName, nameOf, picture, toast } from "/page/parts.js";
import { askForKey, countItems } from "/page/dialogs.js";

const asked = { image: null, like: null }; // a picture (Blob), and an item to start from
let running = null; // the search under way
let hits = [];
const chosen = new Set(); // facets that are switched on
const TASTERS = 12;

export function pickImage(file) {
  if (!file || !file.type.startsWith("image/")) { toast("That is no picture."); return; }
  dropImage();
  asked.image = file;
  asked.url = URL.createObjectURL(file);
  $("picked-image").src = asked.url;
  $("picked").hidden = false;
  submit();
}

function dropImage() {
  if (asked.url) URL.revokeObjectURL(asked.url);
  asked.image = asked.url = null;
  $("picked").hidden = true;
  $("file").value = "";
}

function setLike(id) {
  asked.like = id;
  $("like").hidden = !id;
  $("like-name").textContent = id || "";
  if (id) api.item(id).then((item) => { if (asked.like === id) $("like-name").textContent = nameOf(item); }, () => {});
  $("q").placeholder = id ? "…but how?" : "Describe it, or drop a picture";
}

const want = () => document.querySelector("input[name=want]:checked").value;

// Ask for what the form says; the address tells it, too, so that "back" works.
function submit() {
  const state = new URLSearchParams();
  for (const [name, value] of [["q", $("q").value.trim()], ["want", want()], ["like", asked.like]]) {
    if (value && value !== "any") state.set(name, value);
  }
  const hash = `#/search?${state}`;
  if (location.hash === hash) run(); else location.hash = hash;
}

// Follow the address: fill the form from it and search, if it asks for anything.
export function follow(parameters) {
  $("q").value = parameters.get("q") || "";
  const wanted = parameters.get("want") || "any";
  document.querySelectorAll("input[name=want]").forEach((one) => { one.checked = one.value === wanted; });
  setLike(parameters.get("like"));
  if ($("q").value || asked.like || asked.image) run(); else clear();
}

function clear() {
  running?.abort();
  hits = [];
  $("view-search").classList.remove("answered");
  $("results").replaceChildren();
  $("status").textContent = "";
  $("none").hidden = $("filters").hidden = true;
  showTasters();
}

// A few items to begin with, of each modality and from many branches; choosing one searches for more like it.
async function showTasters() {
  if (!$("tasters").hidden) return;
  try {
    const kinds = (await api.codes([])).codes;
    const branches = await Promise.all(kinds.map((kind) => api.codes([kind.code])));
    const share = Math.floor(TASTERS / Math.max(1, kinds.length));
    const some = branches.flatMap((branch) => branch.codes.slice(0, share).map((twig) => twig.some[0]).filter(Boolean));
    $("tasters-list").replaceChildren(...some.map((item) => {
      const content = item.image ? picture(item, 256) : make("span", { textContent: item.text });
      const button = make("button", { type: "button", title: nameOf(item) }, content);
      button.setAttribute("aria-label", `More like ${nameOf(item)}`);
      button.addEventListener("click", () => moreLike(item.id));
      return make("li", {}, button);
    }));
    $("tasters").hidden = !some.length;
  } catch { /* without a key there is nothing to show yet */ }
}

async function run() {
  running?.abort();
  const mine = running = new AbortController();
  $("view-search").classList.add("answered");
  $("results").setAttribute("aria-busy", "true");
  const fields = {
    text: $("q").value.trim(), image: asked.image, like: asked.like, want: want(),
    instruction: $("instruction").value.trim(), limit: $("limit").value, beam: $("beam").value,
    search: $("method").value, rerank: $("rerank").value,
  };
  try {
    const answer = await api.search(fields, mine.signal);
    if (mine !== running) return;
    hits = answer.hits;
    chosen.clear();
    $("contains").value = "";
    say(answer);
    showFacets();
    show();
  } catch (error) {
    if (error.name === "AbortError") return;
    hits = [];
    $("none").hidden = $("filters").hidden = true;
    $("results").replaceChildren();
    $("status").classList.add("bad");
    $("status").textContent = error.message;
    if (error.status === 401) askForKey(run);
  } finally {
    if (mine === running) $("results").removeAttribute("aria-busy");
  }
}

function say(answer) {
  const number = (value, one, many = `${one}s`) => `${value.toLocaleString()} ${value === 1 ? one : many}`;
  $("status").classList.remove("bad");
  $("status").replaceChildren(
    make("b", { textContent: hits.length ? `${hits.length} found` : "Nothing found" }),
    ` in ${answer.took_ms < 10 ? answer.took_ms.toFixed(1) : Math.round(answer.took_ms)} ms`,
    ` · ${number(answer.beams, "beam")}, ${number(answer.leaves, "leaf", "leaves")}`,
    ` · generation ${answer.generation}`,
  );
}

// --- results ---------------------------------------------------------------------------------------------

const facetsOf = (hit) => [
  modalityName(hit.modality),
  ...Object.entries(hit.meta).filter(([, value]) => typeof value !== "object").map(([name, value]) => `${name}: ${value}`),
];

// Fields that tell hits apart: a name of its own for each hit is no filter.
function showFacets() {
  const fields = new Map(); // field -> value as shown -> hits
  for (const hit of hits) for (const facet of facetsOf(hit)) {
    const field = facet.includes(": ") ? facet.split(": ")[0] : "";
    const counts = fields.get(field) || fields.set(field, new Map()).get(field);
    counts.set(facet, (counts.get(facet) || 0) + 1);
  }
  const telling = [...fields].filter(([field, counts]) => !field || 2 * counts.size <= [...counts.values()].reduce((a, b) => a + b));
  const useful = telling.flatMap(([, counts]) => [...counts]).filter(([, count]) => count < hits.length)
    .sort((a, b) => b[1] - a[1]).slice(0, 8);
  $("facets").replaceChildren(...useful.map(([facet, count]) => {
    const button = make("button", { type: "button", className: "facet", textContent: `${facet} · ${count}` });
    button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      if (!chosen.delete(facet)) chosen.add(facet);
      button.setAttribute("aria-pressed", String(chosen.has(facet)));
      show();
    });
    return button;
  }));
  $("filters").hidden = hits.length < 2;
}

function show() {
  const words = $("contains").value.trim().toLowerCase();
  const shown = hits.filter((hit) =>
    (!words || `${hit.id} ${hit.text || ""} ${JSON.stringify(hit.meta)}`.toLowerCase().includes(words))
    && [...chosen].every((facet) => facetsOf(hit).includes(facet)));
  const cards = shown.map((hit) => card(hit, actions(hit)));
  $("results").replaceChildren(...cards);
  sayNone(cards.length);
  if (!cards.length) return;
  cards[0].tabIndex = 0;
  markShared(cards, shown[0]);
  for (const one of cards) {
    for (const event of ["pointerenter", "focusin"]) one.addEventListener(event, () => markShared(cards, one.item));
  }
  $("results").onpointerleave = () => markShared(cards, shown[0]);
}

// Where there is nothing to show: why, and a way on.
function sayNone(shown) {
  $("none").hidden = shown > 0;
  if (shown) return;
  const [text, label, next] = hits.length
    ? ["None of the results passes these filters.", "Show all of them", clearFilters]
    : want() === "any"
      ? ["There is nothing to find yet.", "Add an item", () => $("open-add").click()]
      : [`There are no ${modalityName(want())}s to find.`, "Search everything", searchEverything];
  const button = make("button", { type: "button", className: "button", textContent: label });
  button.addEventListener("click", next);
  $("none").replaceChildren(make("p", { textContent: text }), button);
}

function clearFilters() {
  $("contains").value = "";
  showFacets();
  chosen.clear();
  show();
}

function searchEverything() {
  document.querySelector("input[name=want][value=any]").checked = true;
  submit();
}

function actions(hit) {
  const more = make("button", { type: "button", className: "more" }, "More", make("span", { textContent: " like this" }));
  more.setAttribute("aria-label", `More like ${nameOf(hit)}`);
  more.title = "More like this (key: m)";
  more.addEventListener("click", () => moreLike(hit.id));
  const but = make("button", { type: "button", className: "but", textContent: "But …" });
  but.setAttribute("aria-label", "Like this, but …");
  but.title = "Like this, but …";
  but.addEventListener("click", () => {
    dropImage();
    setLike(hit.id);
    $("q").value = "";
    $("q").focus();
  });
  const bin = () => $("bin").content.cloneNode(true);
  const remove = make("button", { type: "button", className: "remove", title: "Remove" }, bin());
  remove.setAttribute("aria-label", `Remove ${hit.id}`);
  remove.addEventListener("click", () => removeItem(hit, remove));
  remove.addEventListener("blur", () => { remove.classList.remove("sure"); remove.replaceChildren(bin()); });
  return [more, but, remove];
}

function moreLike(id) {
  dropImage();
  setLike(id);
  $("q").value = "";
  submit();
  scrollTo({ top: 0, behavior: "smooth" });
}

async function removeItem(hit, button) {
  if (!button.classList.contains("sure")) {
    button.classList.add("sure");
    button.textContent = "Really?";
    return;
  }
  try {
    await api.remove(hit.id);
    hits = hits.filter((one) => one !== hit);
    show();
    toast(`Removed “${hit.id}”.`);
    countItems();
  } catch (error) {
    if (error.status === 401) askForKey(() => removeItem(hit, button)); else toast(error.message);
  }
}

// --- keys ------------------------------------------------------------------------------------------------

// Arrow keys move from card to card, by rows where there are several in one.
export function moveFocus(event) {
  const cards = [...$("results").children];
  const at = cards.indexOf(document.activeElement.closest?.(".card"));
  if (at < 0 || event.target.matches("input, textarea, select")) return false;
  const perRow = cards.filter((one) => one.offsetTop === cards[0].offsetTop).length;
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: perRow, ArrowUp: -perRow }[event.key];
  if (event.key === "m") { moreLike(cards[at].item.id); return true; }
  if (event.key === "Enter" && document.activeElement === cards[at]) { cards[at].querySelector(".look").click(); return true; }
  if (!step || !cards[at + step]) return false;
  cards[at + step].focus();
  return true;
}

export function start() {
  $("form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  $("file").addEventListener("change", () => { if ($("file").files[0]) pickImage($("file").files[0]); });
  $("unpick").addEventListener("click", () => { dropImage(); submit(); $("q").focus(); });
  $("unlike").addEventListener("click", () => { setLike(null); submit(); $("q").focus(); });
  $("contains").addEventListener("input", show);
  document.querySelectorAll("input[name=want]").forEach((one) => one.addEventListener("change", () => {
    if ($("q").value.trim() || asked.image || asked.like) submit();
  }));
  $("q").addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" && $("results").firstElementChild) {
      event.preventDefault();
      $("results").firstElementChild.focus();
    }
  });
}
