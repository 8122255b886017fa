// The second view: walk down the tree of codes and see what shares them.

import * as api from "/page/api.js";
import { $, card, hue, make, modalityName, openCodes, picture } from "/page/parts.js";
import { askForKey } from "/page/dialogs.js";

let latest = 0;

export async function show(prefix) {
  const mine = ++latest;
  let branch;
  try {
    branch = await api.codes(prefix);
  } catch (error) {
    $("branch-status").textContent = error.message;
    if (error.status === 401) askForKey(() => show(prefix));
    return;
  }
  if (mine !== latest) return;
  const sample = branch.first[0];
  showTrail(branch.prefix, sample);
  const ends = branch.prefix.length === branch.levels;
  $("branch-status").textContent = branch.items
    ? `${branch.items.toLocaleString()} ${branch.items === 1 ? "item" : "items"}${ends ? "" : " · " + how(branch)}`
    : "No item has these codes.";
  const largest = Math.max(1, ...branch.codes.map((twig) => twig.items));
  $("twigs").classList.toggle("roots", !branch.prefix.length);
  $("twigs").replaceChildren(...branch.codes.map((twig) => tile(branch.prefix, twig, largest)));
  $("branch-title").hidden = !branch.prefix.length || !branch.first.length;
  $("branch-items").replaceChildren(...(branch.prefix.length ? branch.first.map((item) => card(item)) : []));
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

function tile(prefix, twig, largest) {
  const name = label(prefix, twig.code, twig.some[0]);
  const head = make("span", { className: "head" },
    make("span", { className: prefix.length ? "chip shared" : "chip first shared", textContent: name }),
    make("span", { textContent: twig.items.toLocaleString() }));
  const bar = make("span", { className: "bar" }, make("i"));
  const some = make("span", { className: "some" });
  const pictures = twig.some.filter((item) => item.image);
  some.append(...pictures.map((item) => Object.assign(picture(item, 96), { alt: "" })));
  if (!pictures.length) some.append(...twig.some.slice(0, 3).map((item) => make("p", { textContent: item.text || "" })));
  const button = make("button", { type: "button", className: "twig" }, head, bar, some);
  button.setAttribute("aria-label", `${name}: ${twig.items} items`);
  button.style.setProperty("--hue", hue(prefix.length, twig.code));
  button.style.setProperty("--share", `${Math.max(2, (100 * twig.items) / largest)}%`);
  button.addEventListener("click", () => openCodes([...prefix, twig.code]));
  return make("li", {}, button);
}
