// What the reader has set, and who wants to know when it changes.

const gate = page.gates[0];
const state = { tau: gate.tau, start: gate.start, selected: null, hidden: new Set() };
const listeners = { gate: [], selection: [], kinds: [] };

function on(what, listener) { listeners[what].push(listener); }
function announce(what) { for (const listener of listeners[what]) listener(); }

function setGate(tau, start) {
  state.tau = tau;
  state.start = start;
  const untouched = tau === gate.tau && start === gate.start;
  for (const group of groups) {
    group.cut = untouched || !page.adjustable ? group.cuts[0] : firesAt(group, tau, start, gate.every);
  }
  announce("gate");
}

function select(group) {
  state.selected = group;
  announce("selection");
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
