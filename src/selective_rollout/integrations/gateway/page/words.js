"use strict";
// What the page says in words. Unknown is never shown as 0.

const STATES = { running: "running", held: "held at a check", cut: "being stopped", ended: "ended" };
const MARKS = { r: "running", h: "held", f: "finished", t: "truncated", x: "failed", c: "cut" };
const REASONS = {
  fired: "fires",
  distance: "keep: not below tau",
  score: "keep: not below tau",
  score_unknown: "keep: the score lacks facts",
  known_rewards_differ: "keep: known rewards differ",
  known_answers_differ: "keep: known answers differ",
  identical_sampling: "keep: copies by construction",
  history_mixed: "keep: earlier rewards were mixed",
  nobody_running: "keep: nobody is running",
  no_actions: "keep: no action was extracted",
  too_few_members: "keep: too few members",
  singleton: "keep: a group of one",
};

function count(number) {
  return number === null ? "unknown" : Math.round(number).toLocaleString("en").replace("-", "\u2212");
}

function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** Known tokens, where some answers may have come without a count. */
function tokens(known, uncounted) {
  return uncounted && !known ? "unknown" : count(known);
}

function uncountedNote(uncounted) {
  return uncounted ? `${plural(uncounted, "answer")} without a token count left out` : "";
}

function number(value) {
  return value === null ? "unknown" : value.toFixed(3);
}

function compared(value, bounds) {
  if (value !== null) return number(value);
  return bounds ? `${number(bounds[0])} to ${number(bounds[1])}` : "unknown";
}

/** What became of a group so far, in a few words. */
function verdictOf(group) {
  if (group.cut_as === "drop") return `dropped at step ${group.cut_at}`;
  if (group.cut_as === "survivor") return `cut at step ${group.cut_at}, rollout ${group.survivor ?? "?"} answers`;
  if (group.late_veto) return `fired at step ${group.fired_at}, vetoed late`;
  if (group.fired_at !== null) return group.audited ? `audit: cut at ${group.fired_at} not carried out` : `would cut at step ${group.fired_at}`;
  if (group.reason !== null) return REASONS[group.reason] ?? `keep: ${group.reason}`;
  if (group.state === "ended") return "ended before the check";
  return group.next_check === null ? "gate off" : `check at step ${group.next_check}`;
}

function ago(seconds) {
  if (seconds < 1.5) return "just now";
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min ago` : `${Math.round(seconds / 3600)} h ago`;
}

/** Sets text only where it changes, so that a selection in it survives. */
function say(id, text) {
  const node = document.getElementById(id);
  if (node.textContent !== text) node.textContent = text;
}
