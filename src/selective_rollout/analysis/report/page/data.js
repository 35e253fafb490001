"use strict";
// The recorded groups, decoded, and what a gate does to them. The other half of payload.py.

const page = JSON.parse(document.getElementById("payload").textContent);
const KIND_WORDS = {
  all_fail: "all fail", all_success: "all succeed", constant: "equal in between",
  mixed: "signal-bearing", unknown: "unknown label", stopped: "stopped by a gate",
};
const STATUS_WORDS = {
  f: "finished", t: "ran into a limit", x: "lost to a failure", c: "stopped by the gate", r: "never ended",
};
const FIRED = page.reasons.indexOf("fired");
const ZERO_VARIANCE = new Set(["all_fail", "all_success", "constant"]);

const groups = page.groups.map(decodeGroup);

function decodeGroup(row, place) {
  const [id, task, size, kind, members, statuses, rewards, lengths, curve, reasons, cuts, recorded, counted, survivor] = row;
  const [pairs, ...values] = curve;
  const distances = pairs ? values.map((sum, i) => sum / (pairs * (i + 1))) : values;
  const name = page.kinds[kind];
  return {
    place, id, task: task || id, size, kind: name, members, statuses, rewards, lengths, distances, reasons, cuts,
    recorded: { cutAt: recorded[0], wouldCutAt: recorded[1], audited: recorded[2] === 1 },
    counted: counted === 1 && place < page.drawn,
    zeroVariance: ZERO_VARIANCE.has(name) ? true : name === "mixed" ? false : null,
    survivor: page.survives ? survivor : null,
    cut: cuts[0],
  };
}

/** Number of the reason that holds at position k if the distance is below tau; reasons change at few positions. */
function reasonAt(group, k) {
  let reason = page.reasons.indexOf("nobody_running");
  for (let i = 0; i < group.reasons.length && group.reasons[i] <= k; i += 2) reason = group.reasons[i + 1];
  return reason;
}

/** First check that fires, or null. Strictly below tau, as the gate itself decides. */
function firesAt(group, tau, start, every) {
  for (let k = start; k <= group.distances.length; k += every || Infinity) {
    const distance = group.distances[k - 1];
    if (distance !== null && distance < tau && reasonAt(group, k) === FIRED) return k;
  }
  return null;
}

/** Why the rule keeps a group at its first check, in words. */
function whyKept(group, tau, start) {
  const distance = group.distances[start - 1];
  if (start > group.distances.length) return "every rollout had ended by then";
  if (distance === null) return "fewer than two rollouts were left";
  const reason = page.reasons[reasonAt(group, start)];
  if (reason !== "fired") return reason.replaceAll("_", " ");
  return `its distance ${shortNumber(distance)} is not below ${shortNumber(tau)}`;
}

function stepsAfter(group, k) {
  return group.lengths.reduce((sum, length) => sum + Math.max(0, length - k), 0);
}

/** Steps that stopping a group at k leaves ungenerated; a survivor runs on. */
function stepsSaved(group, k) {
  const own = group.survivor === null ? 0 : Math.max(0, group.lengths[group.survivor] - k);
  return stepsAfter(group, k) - own;
}

/** What the cuts now set add up to, over the groups that may be counted. */
function totals() {
  const sum = { groups: 0, steps: 0, right: 0, wrong: 0, unknown: 0, zero: 0, signal: 0, lossless: 0, lossy: 0, other: 0 };
  for (const group of groups) {
    if (!group.counted) continue;
    sum.groups += 1;
    sum.steps += stepsAfter(group, 0);
    sum.zero += group.zeroVariance === true;
    sum.signal += group.zeroVariance === false;
    if (group.cut === null) continue;
    const saved = stepsSaved(group, group.cut);
    if (group.zeroVariance === true) { sum.right += 1; sum.lossless += saved; }
    else if (group.zeroVariance === false) { sum.wrong += 1; sum.lossy += saved; }
    else { sum.unknown += 1; sum.other += saved; }
  }
  const saved = sum.steps ? (sum.lossless + sum.lossy + sum.other) / sum.steps : null;
  sum.loss = sum.signal ? sum.wrong / sum.signal : null;
  sum.efficiency = sum.loss === null || saved === null || saved >= 1 ? null : (1 - sum.loss) / (1 - saved);
  return sum;
}

function verdictOf(group) {
  if (group.kind === "stopped") return "stopped";
  if (group.cut === null) return group.zeroVariance ? "missed" : "kept";
  if (group.zeroVariance === null) return "cut, unknown";
  return group.zeroVariance ? "cut, right" : "cut, wrong";
}

function shortNumber(value) {
  return value === null || value === undefined ? "unknown" : String(Number(value.toFixed(3)));
}

function percentText(share) {
  return share === null ? "unknown" : `${(100 * share).toFixed(1)}%`;
}
