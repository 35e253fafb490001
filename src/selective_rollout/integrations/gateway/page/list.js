// What the list of groups shows, and in which order.

const SQUARES = 12;
const FILTERS = {
  "all groups": () => true,
  "open": (group) => group.state !== "ended",
  "held": (group) => group.state === "held",
  "the gate fired": (group) => group.fired_at !== null,
  "stopped": (group) => group.cut_as !== null,
  "audited": (group) => group.audited && group.fired_at !== null,
  "ended": (group) => group.state === "ended",
};
const SORTS = {
  "open first": () => 0,
  "latest activity": (group) => -group.touched_at,
  "distance, near first": (group) => group.compared ?? Infinity,
  "distance, far first": (group) => -(group.compared ?? -Infinity),
  "tokens, most first": (group) => -group.completion_tokens,
};

const list = groupList({
  rowHeight: 58,
  filters: FILTERS,
  sorts: SORTS,
  names: (group) => [group.group, group.task_id],
  found: (some, all) => `${count(some)} of ${plural(all, "group")}`,
  fill(row, group) {
    const above = element("div", "line");
    above.append(element("span", "name", group.group), meter(group));
    const below = element("div", "line");
    const marks = strip([...group.members.slice(0, SQUARES)].map((mark) => `is-${mark}`), group.size - SQUARES, tally(group.members));
    below.append(marks, element("span", group.fired_at === null ? "verdict" : "verdict fired", verdictOf(group)));
    row.append(above, below);
    row.title = `${group.group}: ${STATES[group.state] ?? group.state}, ${ago(state.now - group.touched_at)}`;
  },
  isSelected: (group) => group.group === state.selected,
  choose,
});

function choose(group) {
  state.selected = group.group;
  detail.begin(group);
  list.paint();
  feed.ask();
}

function tally(members) {
  return Object.entries(MARKS)
    .map(([mark, words]) => [members.split(mark).length - 1, words])
    .filter(([times]) => times)
    .map(([times, words]) => `${times} ${words}`)
    .join(", ");
}

/** What was held against tau on a scale from 0 to 1, with a tick at tau. */
function meter(group) {
  const made = element("span", "meter");
  const scale = element("span", "scale");
  const tick = element("i", "tick");
  tick.style.left = `${100 * group.tau}%`;
  if (group.compared !== null) {
    const fill = element("i", group.fired_at === null ? "fill" : "fill fired");
    fill.style.width = `${100 * group.compared}%`;
    scale.append(fill);
  } else if (group.bounds) {
    const fill = element("i", "fill bounded");
    fill.style.left = `${100 * group.bounds[0]}%`;
    fill.style.width = `${100 * (group.bounds[1] - group.bounds[0])}%`;
    scale.append(fill);
  }
  scale.append(tick);
  made.append(scale, element("b", "", group.compared === null ? "" : group.compared.toFixed(2)));
  return made;
}
