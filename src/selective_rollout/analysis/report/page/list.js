// The list of groups. Only the rows in view exist, so ten thousand cost what twenty do.

const ROW_HEIGHT = 52;
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

const list = (() => {
  const box = document.getElementById("list");
  const space = document.getElementById("list-space");
  const search = document.getElementById("search");
  const show = document.getElementById("show");
  const sort = document.getElementById("sort");
  let found = [];

  function fill(selectBox, names) {
    for (const name of names) selectBox.append(element("option", "", name));
  }

  function refresh() {
    const wanted = search.value.trim().toLowerCase();
    const passes = FILTERS[show.value];
    const key = SORTS[sort.value];
    found = groups
      .filter((group) => passes(group) && (!wanted || group.id.toLowerCase().includes(wanted) || group.task.toLowerCase().includes(wanted)))
      .map((group) => [key(group), group])
      .sort((a, b) => a[0] - b[0] || a[1].place - b[1].place)
      .map((pair) => pair[1]);
    space.style.height = `${found.length * ROW_HEIGHT}px`;
    document.getElementById("found").textContent =
      `${found.length.toLocaleString("en")} of ${groups.length.toLocaleString("en")} groups`;
    paint();
  }

  function paint() {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW_HEIGHT) - 4);
    const last = Math.min(found.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW_HEIGHT) + 4);
    const rows = [];
    for (let i = first; i < last; i++) rows.push(row(found[i], i));
    space.replaceChildren(...rows);
    const current = state.selected && rows.some((one) => one.id === `group-${state.selected.place}`);
    if (current) box.setAttribute("aria-activedescendant", `group-${state.selected.place}`);
    else box.removeAttribute("aria-activedescendant");
  }

  function row(group, i) {
    const made = element("div", "row");
    made.id = `group-${group.place}`;
    made.style.top = `${i * ROW_HEIGHT}px`;
    made.setAttribute("role", "option");
    made.setAttribute("aria-selected", String(group === state.selected));
    made.setAttribute("aria-setsize", found.length);
    made.setAttribute("aria-posinset", i + 1);
    const verdict = verdictOf(group);
    const above = element("div", "line");
    above.append(element("span", "name", group.id), element("span", "d", shortNumber(distanceNow(group))));
    const below = element("div", "line");
    below.append(strip(group), element("span", verdict === "cut, wrong" ? "verdict bad" : "verdict", verdict));
    made.append(above, below);
    made.title = group.id;
    made.addEventListener("click", () => select(group));
    return made;
  }

  /** One square a rollout, by reward. */
  function strip(group) {
    const made = element("span", "strip");
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", KIND_WORDS[group.kind]);
    for (const reward of group.rewards.slice(0, 16)) made.append(element("i", rewardClass(reward)));
    if (group.rewards.length > 16) made.append(element("span", "", `+${group.rewards.length - 16}`));
    return made;
  }

  function move(by) {
    if (!found.length) return;
    const now = found.indexOf(state.selected);
    const next = Math.max(0, Math.min(found.length - 1, now < 0 ? 0 : now + by));
    keepInView(next);
    select(found[next]);
  }

  function keepInView(i) {
    const top = i * ROW_HEIGHT;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + ROW_HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW_HEIGHT - box.clientHeight;
  }

  function reveal(group) {
    if (!found.includes(group)) {
      search.value = "";
      show.selectedIndex = 0;
      refresh();
    }
    keepInView(found.indexOf(group));
    select(group);
  }

  box.addEventListener("keydown", (event) => {
    const page_ = Math.max(1, Math.floor(box.clientHeight / ROW_HEIGHT) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page_, PageUp: -page_, Home: -found.length, End: found.length };
    if (!(event.key in steps)) return;
    event.preventDefault();
    move(steps[event.key]);
  });
  box.addEventListener("scroll", paint, { passive: true });
  for (const input of [search, show, sort]) {
    input.addEventListener("input", () => { box.scrollTop = 0; refresh(); });
  }
  fill(show, Object.keys(FILTERS).filter((name) => name === "all groups" || name.includes("cut") || name === "missed" || groups.some(FILTERS[name])));
  fill(sort, Object.keys(SORTS));
  on("gate", refresh);
  on("selection", paint);
  return { refresh, reveal, first: () => found[0] };
})();

function rewardClass(reward) {
  if (reward === null) return "none";
  if (reward <= 1e-6) return "lose";
  return reward >= 1 - 1e-6 ? "win" : "part";
}
