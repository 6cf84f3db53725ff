"use strict";
// Light, dark, or as the system has it: the reader chooses, and the browser remembers it.
const theme = (function () {
  const key = "perfmodel-theme", choices = ["system", "light", "dark"];
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const listeners = [];
  let chosen = "system";
  try {
    const kept = localStorage.getItem(key);
    if (choices.includes(kept)) chosen = kept;
  } catch (error) { /* the browser keeps nothing: as the system has it */ }
  function shown() {
    return chosen === "system" ? (system.matches ? "dark" : "light") : chosen;
  }
  function apply() {
    root.dataset.theme = shown();
    for (const listener of listeners) listener();
  }
  function choose(value) {
    chosen = value;
    try { localStorage.setItem(key, value); } catch (error) { /* for this visit only */ }
    apply();
  }
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", function () {
    for (const input of document.querySelectorAll('input[name="theme"]')) {
      input.checked = input.value === chosen;
      input.addEventListener("change", () => choose(input.value));
    }
  });
  apply();
  return {shown: shown, onChange: (listener) => listeners.push(listener)};
})();
