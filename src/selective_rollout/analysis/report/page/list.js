// What the list of groups shows, and in which order.

const SQUARES = 16;
const FILTERS = {
  "all groups": () => true,
  "cuts": (group) => group.cut !== null,
  "wrong cuts": (group) => group.cut !== null && group.zeroVariance === false,
  "right cuts": (group) => group.cut !== null && group.zeroVariance === true,
  "missed": (group) => group.cut === null && group.zeroVariance === true,
  "zero variance": (group) => group.zeroVariance === true,
  "all fail": (group) => group.kind === "all_fail",
  "all succeed": (group) => group.kind === "all_success",
  "signal-bearing": (group) => group.zeroVariance === false,
  "unknown label": (group) => group.kind === "unknown",
  "stopped by a gate": (group) => group.kind === "stopped",
  "audited": (group) => group.recorded.audited,
  "with actions": (group) => String(group.place) in page.trees,
};
const SORTS = {
  "distance, near first": (group) => distanceNow(group) ?? Infinity,
  "distance, far first": (group) => -(distanceNow(group) ?? -Infinity),
  "order recorded": (group) => group.place,
  "mean reward": (group) => meanReward(group) ?? Infinity,
  "steps, most first": (group) => -stepsAfter(group, 0),
};

function distanceNow(group) {
  const last = group.distances.length;
  return last ? group.distances[Math.min(state.start, last) - 1] : null;
}

function meanReward(group) {
  const known = group.rewards.filter((reward) => reward !== null);
  return known.length ? known.reduce((sum, reward) => sum + reward, 0) / known.length : null;
}

/** The ways to choose groups that choose any of these; those about cuts change with the gate. */
function usefulFilters() {
  const always = (name) => name === "all groups" || name.includes("cut") || name === "missed";
  return Object.fromEntries(Object.entries(FILTERS).filter(([name, passes]) => always(name) || groups.some(passes)));
}

const list = groupList({
  rowHeight: 52,
  filters: usefulFilters(),
  sorts: SORTS,
  names: (group) => [group.id, group.task],
  found: (some, all) => `${some.toLocaleString("en")} of ${all.toLocaleString("en")} groups`,
  fill(row, group) {
    const verdict = verdictOf(group);
    const above = element("div", "line");
    above.append(element("span", "name", group.id), element("span", "d", shortNumber(distanceNow(group))));
    const below = element("div", "line");
    const rewards = strip(group.rewards.slice(0, SQUARES).map(rewardClass), group.rewards.length - SQUARES, KIND_WORDS[group.kind]);
    below.append(rewards, element("span", verdict === "cut, wrong" ? "verdict bad" : "verdict", verdict));
    row.append(above, below);
    row.title = group.id;
  },
  isSelected: (group) => group === state.selected,
  choose: select,
});
on("gate", () => list.refresh(groups));
on("selection", list.paint);

function rewardClass(reward) {
  if (reward === null) return "none";
  if (reward <= 1e-6) return "lose";
  return reward >= 1 - 1e-6 ? "win" : "part";
}
