// The search view: what is asked, and what is said of the answer.

import * as api from "/page/api.js";
import { askForKey, facts } from "/page/dialogs.js";
import * as fields from "/page/fields.js";
import * as filters from "/page/filters.js";
import { $, button, countOf, isPicture, make, modalityName, nameOf, noPicture, picture, reloadPictures, toast } from "/page/parts.js";
import * as results from "/page/results.js";

const SLOW_MS = 6000;
const LEARN_MS = 1500; // a search does not wait longer for the names of fields
const SAMPLE = 100; // items whose fields are learned
const TASTERS = 12;
const CLOSE = 0.03; // where the best answer is less sure than this, it is hardly what was meant
const NARROW = matchMedia("(max-width: 480px)");
const asked = { image: null, like: null }; // a picture (Blob), and an item to start from
let running = null; // the search under way
let failed = null; // what to do again once the server is back
let learned = Promise.resolve(); // when the metadata fields of the collection are known

// --- what is asked ---------------------------------------------------------------------------------------

export function pickImage(file) {
  if (!isPicture(file)) { toast(noPicture(file)); return; }
  dropImage();
  asked.image = file;
  asked.url = URL.createObjectURL(file);
  showPicked(true);
  $("picked-image").src = asked.url;
  $("picked").hidden = false;
  submit();
}

// No browser shows every format: where the picture cannot be seen, its name is.
function showPicked(seen) {
  $("picked-image").hidden = !seen;
  $("picked-name").hidden = seen;
  $("picked-name").textContent = asked.image?.name || "a picture";
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
  $("q").placeholder = id ? "…but how?" : NARROW.matches ? "Describe it" : "Describe it, or drop a picture";
}

const want = () => document.querySelector("input[name=want]:checked").value;
const asksAnything = () => Boolean($("q").value.trim() || asked.image || asked.like);

// Ask for what the form says; the address tells it, too, so that "back" works.
function submit() {
  const state = new URLSearchParams();
  const values = { q: $("q").value.trim(), want: want(), like: asked.like, ...filters.saved() };
  for (const [name, value] of Object.entries(values)) if (value && value !== "any") state.set(name, value);
  const hash = `#/search?${state}`;
  if (location.hash !== hash) location.hash = hash;
  else if (asksAnything()) run();
  else clear();
}

// Follow the address: fill the form from it and search, if it asks for anything.
export function follow(parameters) {
  $("q").value = parameters.get("q") || "";
  const wanted = parameters.get("want") || "any";
  document.querySelectorAll("input[name=want]").forEach((one) => { one.checked = one.value === wanted; });
  setLike(parameters.get("like"));
  filters.restore(parameters);
  if (asksAnything()) run(); else clear();
}

function clear() {
  running?.abort();
  results.clear();
  $("view-search").classList.remove("answered");
  for (const id of ["said", "none", "tools", "notice", "nearest"]) $(id).hidden = true;
  showTasters();
}

function request(cursor) {
  const value = (id) => $(id).value.trim() || null;
  const sentence = { none: "", own: value("instruction") }[$("instruction-kind").value] ?? null;
  return {
    text: value("q"), image: asked.image, like: asked.like, want: want(), instruction: sentence, cursor,
    limit: value("limit"), beam: value("beam"), search: value("method"), rerank: value("rerank"), hybrid: value("hybrid"),
    at_least: value("at-least") && Number(value("at-least")) / 100,
    match: filters.match() || null, where: filters.where() || null, facets: cursor ? null : filters.facetFields(fields.learn([])).join(","),
  };
}

// --- asking ----------------------------------------------------------------------------------------------

// Search, or with a cursor get the next page; whether anything came. What was found before stays until then.
async function run(cursor = null) {
  running?.abort();
  const mine = running = new AbortController();
  const again = () => run(cursor);
  $("view-search").classList.add("answered");
  busy(true);
  const slow = setTimeout(() => notice("This takes longer than usual.", again), SLOW_MS);
  try {
    await learned;
    const answer = await api.search(request(cursor), mine.signal);
    if (mine !== running) return false;
    failed = null;
    $("notice").hidden = true;
    const close = answer.hits.some((hit) => (hit.confidence ?? 1) >= CLOSE); // null: the model does not tell
    const found = answer.hits.length ? answer : { ...answer, hits: answer.nearest };
    const first = cursor ? results.append(found) : results.set(found);
    say(answer, cursor);
    if (!cursor) $("nearest").hidden = close || !results.hits.length;
    if (first && document.activeElement === document.body) first.focus();
    return found.hits.length > 0;
  } catch (error) {
    if (error.name === "AbortError" || mine !== running) return false;
    failed = error.again ? again : null;
    notice(error.message, error.again ? again : null, Boolean(results.hits.length && !cursor));
    if (error.status === 401) askForKey(again);
    return false;
  } finally {
    clearTimeout(slow);
    if (mine === running) busy(false);
  }
}

function busy(on) {
  $("form").classList.toggle("busy", on);
  $("searching").textContent = on ? "Searching …" : "";
  if (on) $("results").setAttribute("aria-busy", "true"); else $("results").removeAttribute("aria-busy");
}

// Say what went wrong, or is slow, and offer to try again. A wrong filter is shown with the place of the mistake.
function notice(text, again, kept = false) {
  const [first, ...place] = text.split("\n");
  const reason = first[0].toUpperCase() + first.slice(1) + (/[.!?]$/.test(first) ? "" : ".");
  const parts = [make("p", { textContent: kept ? `${reason} What you see below was found before.` : reason })];
  if (place.length) parts.push(make("pre", { textContent: place.join("\n") }));
  $("notice").replaceChildren(make("div", {}, ...parts));
  if (again) $("notice").append(button("Try again", { className: "button" }, again));
  $("notice").hidden = false;
}

// --- what is said of the answer --------------------------------------------------------------------------

function say(answer, cursor) {
  const found = results.hits.length;
  const pool = answer.pool ?? (want() === "any" ? facts.items : facts.modalities?.[want()]) ?? found;
  const kind = want() === "any" ? "item" : modalityName(want());
  const all = found >= pool - (asked.like ? 1 : 0);
  const of = filters.any() ? `${pool.toLocaleString()} that pass the filters` : countOf(pool, kind);
  $("status").textContent = !found ? "Nothing found" : all ? `All ${found.toLocaleString()}, the best first` : `${found.toLocaleString()} best of ${of}`;
  if (found === 1 && all) $("status").textContent = "1 found";
  $("how-text").textContent = [
    `${answer.took_ms < 10 ? answer.took_ms.toFixed(1) : Math.round(answer.took_ms)} ms`,
    `${countOf(answer.beams, "beam")} followed`, `${countOf(answer.leaves, "item")} ranked`,
    `generation ${answer.generation} of the index`, facts.model && `model ${facts.model}`, fitted(),
  ].filter(Boolean).join(" · ");
  if (answer.facets && !cursor) filters.show(answer.facets);
  $("said").hidden = false;
  $("tools").hidden = !found && !filters.any();
  sayNone(found, answer.unknown_fields);
}

// When the codes were fitted to the collection, where that was done, and whether it is time to do it again.
function fitted() {
  const { fitted: at, items_then: items, worth_fitting: worth } = facts.fit || {};
  const when = at && `codes fitted on ${new Date(at).toLocaleDateString()} to ${countOf(items, "item")}`;
  return [when, worth && `\`genius fit\` is worth it: ${worth}`].filter(Boolean).join(" · ");
}

// Where there is nothing to show: why, and a way on.
function sayNone(found, unknown = []) {
  $("none").hidden = found > 0;
  if (found) return;
  const [text, label, next] = filters.any()
    ? [`Nothing passes these filters${unknown.length ? `: no item has the field ${unknown.join(" or ")}` : ""}.`, "Search without them", filters.clear]
    : want() === "any"
      ? ["There is nothing to find yet.", "Add an item", () => $("open-add").click()]
      : [`There are no ${modalityName(want())}s to find.`, "Search everything", searchEverything];
  $("none").replaceChildren(make("p", { textContent: text }), button(label, { className: "button" }, next));
}

function searchEverything() {
  document.querySelector("input[name=want][value=any]").checked = true;
  submit();
}

// A few items to begin with, of each modality and from many branches; choosing one searches for more like it.
async function showTasters() {
  if (!$("tasters").hidden) return;
  try {
    const kinds = (await api.codes([])).codes;
    const branches = await Promise.all(kinds.map((kind) => api.codes([kind.code])));
    const share = Math.floor(TASTERS / Math.max(1, kinds.length));
    const some = branches.flatMap((branch) => branch.codes.slice(0, share).map((child) => child.some[0]).filter(Boolean));
    $("tasters-list").replaceChildren(...some.map((item) => {
      const content = item.image ? picture(item, 256) : make("span", { textContent: item.text });
      return make("li", {}, button(content, { title: nameOf(item), label: `More like ${nameOf(item)}` }, () => moreLike(item.id)));
    }));
    $("tasters").hidden = !some.length;
  } catch { /* without a key, or a server, there is nothing to show yet */ }
}

function moreLike(id) {
  dropImage();
  setLike(id);
  $("q").value = "";
  submit();
  scrollTo({ top: 0, behavior: "smooth" });
}

function likeBut(id) {
  dropImage();
  setLike(id);
  $("q").value = "";
  $("q").focus();
}

function learn() {
  learned = Promise.race([api.items(SAMPLE).then(fields.learn, () => {}), api.pause(LEARN_MS)]);
}

// The server is there again: ask again what it did not answer.
export function back() {
  learn();
  failed?.();
  reloadPictures();
  if (!asksAnything()) showTasters();
}

export function start() {
  $("form").addEventListener("submit", (event) => { event.preventDefault(); submit(); });
  $("file").addEventListener("change", () => { if ($("file").files[0]) pickImage($("file").files[0]); });
  $("picked-image").addEventListener("error", () => showPicked(false));
  $("unpick").addEventListener("click", () => { dropImage(); submit(); $("q").focus(); });
  $("unlike").addEventListener("click", () => { setLike(null); submit(); $("q").focus(); });
  document.querySelectorAll("input[name=want]").forEach((one) => one.addEventListener("change", () => { if (asksAnything()) submit(); }));
  $("instruction-kind").addEventListener("change", () => { $("instruction").disabled = $("instruction-kind").value !== "own"; });
  $("filters-open").addEventListener("click", () => {
    const open = $("tools").classList.toggle("open");
    $("filters-open").setAttribute("aria-expanded", String(open));
  });
  $("q").addEventListener("keydown", (event) => {
    if (event.key !== "ArrowDown" || !$("results").firstElementChild) return;
    event.preventDefault();
    $("results").firstElementChild.focus();
  });
  learn();
  filters.start(submit);
  results.start({ like: moreLike, but: likeBut, more: run });
}
