// The second view: walk down the tree of codes and see what shares them.

import * as api from "/page/api.js";
import { askForKey } from "/page/dialogs.js";
import { $, hue, make, modalityName, openCodes, picture } from "/page/parts.js";
import { card } from "/page/results.js";
import * as viewer from "/page/viewer.js";

let latest = 0;
let failed = null; // what to do again once the server is back

export function back() { failed?.(); }

export async function show(prefix) {
  const mine = ++latest;
  let branch;
  try {
    branch = await api.codes(prefix);
  } catch (error) {
    $("branch-status").textContent = error.message;
    if (error.again) failed = () => show(prefix);
    if (error.status === 401) askForKey(() => show(prefix));
    return;
  }
  if (mine !== latest) return;
  failed = null;
  const sample = branch.first[0];
  showTrail(branch.prefix, sample);
  const ends = branch.prefix.length === branch.levels;
  $("branch-status").textContent = branch.items
    ? `${branch.items.toLocaleString()} ${branch.items === 1 ? "item" : "items"}${ends ? "" : " · " + how(branch)}`
    : "No item has these codes.";
  const largest = Math.max(1, ...branch.codes.map((child) => child.items));
  $("tiles").classList.toggle("roots", !branch.prefix.length);
  $("tiles").replaceChildren(...branch.codes.map((child) => tile(branch.prefix, child, largest)));
  $("branch-title").hidden = !branch.prefix.length || !branch.first.length;
  $("branch-items").replaceChildren(...(branch.prefix.length ? branch.first.map((item) => card(item, () => viewer.open(() => branch.first, item))) : []));
}

function how({ prefix, levels, codes }) {
  const many = codes.length === 1 ? "1 code" : `${codes.length} codes`;
  return `${many} at level ${prefix.length} of ${levels}${codes.length > 1 ? ", the most frequent first" : ""}`;
}

function label(prefix, code, sample) {
  return prefix.length === 0 && sample ? `${modalityName(sample.modality)}s` : String(code);
}

function showTrail(prefix, sample) {
  const all = make("button", { type: "button", className: "all", textContent: "everything" });
  all.addEventListener("click", () => openCodes([]));
  const steps = prefix.flatMap((code, level) => {
    const button = make("button", {
      type: "button", className: level ? "chip shared" : "chip first shared", textContent: label(prefix.slice(0, level), code, sample),
    });
    button.setAttribute("aria-label", `level ${level}: ${button.textContent}`);
    button.style.setProperty("--hue", hue(level, code));
    if (level === prefix.length - 1) button.setAttribute("aria-current", "true");
    button.addEventListener("click", () => openCodes(prefix.slice(0, level + 1)));
    return [make("span", { className: "sep", textContent: "›", ariaHidden: "true" }), button];
  });
  $("trail").replaceChildren(all, ...steps);
}

function tile(prefix, child, largest) {
  const name = label(prefix, child.code, child.some[0]);
  const head = make("span", { className: "head" },
    make("span", { className: prefix.length ? "chip shared" : "chip first shared", textContent: name }),
    make("span", {}, child.items.toLocaleString(), make("span", { className: "sr", textContent: child.items === 1 ? " item" : " items" })));
  const bar = make("span", { className: "bar" }, make("i"));
  const some = make("span", { className: "some" });
  const pictures = child.some.filter((item) => item.image);
  some.append(...pictures.map((item) => Object.assign(picture(item, 96), { alt: "" })));
  if (!pictures.length) some.append(...child.some.slice(0, 3).map((item) => make("p", { textContent: item.text || "" })));
  const button = make("button", { type: "button", className: "tile" }, head, bar, some);
  button.dataset.name = name;
  button.style.setProperty("--hue", hue(prefix.length, child.code));
  button.style.setProperty("--share", `${Math.max(2, (100 * child.items) / largest)}%`);
  button.addEventListener("click", () => openCodes([...prefix, child.code]));
  return make("li", {}, button);
}
