// Menus that drop down (`details.menu`): one is open at a time, and Escape or a press beside it closes it.

const opened = () => document.querySelectorAll("details.menu[open]");

export function start() {
  document.addEventListener("toggle", (event) => {
    if (!event.target.matches?.("details.menu") || !event.target.open) return;
    opened().forEach((one) => { if (one !== event.target) one.open = false; });
    keepInside(event.target.querySelector(".panel"));
  }, true);
  document.addEventListener("click", (event) => opened().forEach((one) => { if (!one.contains(event.target)) one.open = false; }));
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    opened().forEach((one) => { one.open = false; one.querySelector("summary").focus(); });
  });
}

// A panel that would reach beyond the right edge of the window is moved to the left.
function keepInside(panel) {
  panel.style.removeProperty("--shift");
  const beyond = panel.getBoundingClientRect().right - document.documentElement.clientWidth + 12;
  if (beyond > 0) panel.style.setProperty("--shift", `${-beyond}px`);
}
