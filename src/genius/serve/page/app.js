// The page: which view is shown, light or dark, keys, pictures dropped or pasted anywhere.

import * as codes from "/page/codes.js";
import * as dialogs from "/page/dialogs.js";
import * as menus from "/page/menus.js";
import { $, isPicture } from "/page/parts.js";
import { moveFocus } from "/page/results.js";
import * as search from "/page/search.js";

const REFRESH_MS = 5000;

function route() {
  const [path, query = ""] = location.hash.slice(1).split("?");
  const [view, rest = ""] = path.replace(/^\//, "").split("/");
  const inCodes = view === "codes";
  $("view-search").hidden = inCodes;
  $("view-codes").hidden = !inCodes;
  document.querySelectorAll("[data-view]").forEach((link) => {
    if ((link.dataset.view === "codes") === inCodes) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  if ($("detail").open) $("detail").close();
  if (inCodes) codes.show(rest.split(",").filter(Boolean).map(Number).filter(Number.isInteger));
  else search.follow(new URLSearchParams(query));
}

function theme() {
  const saved = localStorage.getItem("genius-theme");
  const dark = saved ? saved === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

// The file that was dropped or pasted: a picture, if one is among several.
function takeFile(transfer) {
  const files = [...(transfer?.files || [])];
  const file = files.find(isPicture) || files[0];
  if (file && !dialogs.takesFile(file)) search.pickImage(file);
}

function listen() {
  addEventListener("hashchange", route);
  addEventListener("scroll", () => document.querySelector(".top").classList.toggle("scrolled", scrollY > 4), { passive: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
  $("theme").addEventListener("click", () => {
    localStorage.setItem("genius-theme", document.documentElement.dataset.theme === "dark" ? "light" : "dark");
    theme();
  });
  addEventListener("dragover", (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    $("veil").hidden = $("add").open;
  });
  addEventListener("dragleave", (event) => { if (!event.relatedTarget) $("veil").hidden = true; });
  addEventListener("drop", (event) => {
    event.preventDefault();
    $("veil").hidden = true;
    takeFile(event.dataTransfer);
  });
  addEventListener("paste", (event) => takeFile(event.clipboardData));
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.key === "/" && !event.target.matches("input, textarea, select")) {
      event.preventDefault();
      if ($("view-search").hidden) location.hash = "#/search";
      $("q").focus();
      $("q").select();
    } else if (!$("view-search").hidden && moveFocus(event)) event.preventDefault();
  });
}

theme();
menus.start();
dialogs.start();
search.start();
listen();
route();
if (!location.hash || location.hash === "#/search") $("q").focus();

// The count lives as long as somebody looks; it rests while a key is missing.
let before = "there";
(async function count() {
  const now = document.hidden ? before : await dialogs.countItems();
  if (now === "locked" && before !== "locked") dialogs.askForKey(route);
  if (now === "there" && before === "away") { search.back(); codes.back(); }
  before = now;
  setTimeout(count, now === "locked" ? 6 * REFRESH_MS : REFRESH_MS);
})();
