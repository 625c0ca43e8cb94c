"use strict";
(() => {
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const tip = document.getElementById("tip");
  const systemDark = window.matchMedia("(prefers-color-scheme: dark)");

  // Storage may be refused, as for a page opened from disk.
  const remembered = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const remember = (theme) => { try { localStorage.setItem("theme", theme); } catch { /* as it is */ } };

  const isDark = () => (root.dataset.theme ?? (systemDark.matches ? "dark" : "light")) === "dark";
  const showTheme = () => button.setAttribute("aria-pressed", String(isDark()));
  const before = remembered();
  if (before === "light" || before === "dark") root.dataset.theme = before;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember(root.dataset.theme);
    showTheme();
  });
  systemDark.addEventListener("change", showTheme);
  showTheme();

  const hide = () => { tip.hidden = true; };
  const show = (point) => {
    tip.textContent = point.dataset.tip;
    tip.hidden = false;
    const place = point.getBoundingClientRect();
    const left = place.left + place.width / 2 - tip.offsetWidth / 2;
    const room = root.clientWidth - tip.offsetWidth - 4;
    tip.style.left = `${Math.max(4, Math.min(left, room)) + window.scrollX}px`;
    const above = place.top - tip.offsetHeight - 6;
    tip.style.top = `${(above < 4 ? place.bottom + 6 : above) + window.scrollY}px`;
  };

  // A figure is one stop of the Tab key; arrows go from point to point within it.
  for (const plot of document.querySelectorAll(".plot")) {
    const points = [...plot.querySelectorAll(".point")];
    points.forEach((point, at) => {
      point.setAttribute("tabindex", at === 0 ? "0" : "-1");
      point.addEventListener("pointerenter", () => show(point));
      point.addEventListener("pointerleave", hide);
      point.addEventListener("focus", () => show(point));
      point.addEventListener("blur", hide);
      point.addEventListener("keydown", (event) => {
        if (event.key === "Escape") return hide();
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        const next = { Home: 0, End: points.length - 1 }[event.key]
          ?? (step === undefined ? undefined : (at + step + points.length) % points.length);
        if (next === undefined) return;
        event.preventDefault();
        point.setAttribute("tabindex", "-1");
        points[next].setAttribute("tabindex", "0");
        points[next].focus();
      });
    });
  }

  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    folded.forEach((part) => { part.open = true; });
  });
  window.addEventListener("afterprint", () => folded.forEach((part) => { part.open = false; }));
})();
