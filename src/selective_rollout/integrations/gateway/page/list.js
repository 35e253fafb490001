// The list of groups. Only the rows in view exist, so two thousand groups cost what twenty do.

const ROW_HEIGHT = 58;
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

const list = (() => {
  const box = document.getElementById("list");
  const space = document.getElementById("list-space");
  const search = document.getElementById("search");
  const show = document.getElementById("show");
  const sort = document.getElementById("sort");
  let groups = [];
  let now = 0;
  let found = [];

  function refresh() {
    const wanted = search.value.trim().toLowerCase();
    const passes = FILTERS[show.value];
    const key = SORTS[sort.value];
    found = groups
      .filter((group) => passes(group) && (group.group.toLowerCase().includes(wanted) || group.task_id.toLowerCase().includes(wanted)))
      .map((group, place) => [key(group), place, group])
      .sort((a, b) => a[0] - b[0] || a[1] - b[1])
      .map((entry) => entry[2]);
    space.style.height = `${found.length * ROW_HEIGHT}px`;
    say("found", `${count(found.length)} of ${plural(groups.length, "group")}`);
    paint();
  }

  function paint() {
    const first = Math.max(0, Math.floor(box.scrollTop / ROW_HEIGHT) - 4);
    const last = Math.min(found.length, Math.ceil((box.scrollTop + box.clientHeight) / ROW_HEIGHT) + 4);
    const rows = [];
    for (let i = first; i < last; i++) rows.push(row(found[i], i));
    space.replaceChildren(...rows);
    const current = rows.find((one) => one.getAttribute("aria-selected") === "true");
    if (current) box.setAttribute("aria-activedescendant", current.id);
    else box.removeAttribute("aria-activedescendant");
  }

  function row(group, i) {
    const made = element("div", "row");
    made.id = `row-${i}`;
    made.style.top = `${i * ROW_HEIGHT}px`;
    made.setAttribute("role", "option");
    made.setAttribute("aria-selected", String(group.group === state.selected));
    made.setAttribute("aria-setsize", found.length);
    made.setAttribute("aria-posinset", i + 1);
    const above = element("div", "line");
    above.append(element("span", "name", group.group), meter(group));
    const below = element("div", "line");
    below.append(strip(group), element("span", group.fired_at === null ? "verdict" : "verdict fired", verdictOf(group)));
    made.append(above, below);
    made.title = `${group.group}: ${STATES[group.state] ?? group.state}, ${ago(now - group.touched_at)}`;
    made.addEventListener("click", () => choose(group));
    return made;
  }

  /** One square a rollout, by how it is doing. */
  function strip(group) {
    const made = element("span", "strip");
    made.setAttribute("role", "img");
    made.setAttribute("aria-label", tally(group.members));
    for (const mark of group.members.slice(0, SQUARES)) made.append(element("i", `is-${mark}`));
    if (group.size > SQUARES) made.append(element("span", "", `+${group.size - SQUARES}`));
    return made;
  }

  function tally(members) {
    return Object.entries(MARKS)
      .map(([mark, words]) => [members.split(mark).length - 1, words])
      .filter(([times]) => times)
      .map(([times, words]) => `${times} ${words}`)
      .join(", ");
  }

  function choose(group) {
    state.selected = group.group;
    detail.begin(group);
    paint();
    feed.ask();
  }

  function move(by) {
    if (!found.length) return;
    const place = found.findIndex((group) => group.group === state.selected);
    const next = Math.max(0, Math.min(found.length - 1, place < 0 ? 0 : place + by));
    const top = next * ROW_HEIGHT;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + ROW_HEIGHT > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW_HEIGHT - box.clientHeight;
    choose(found[next]);
  }

  box.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.floor(box.clientHeight / ROW_HEIGHT) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -found.length, End: found.length };
    if (!(event.key in steps)) return;
    event.preventDefault();
    move(steps[event.key]);
  });
  box.addEventListener("scroll", paint, { passive: true });
  for (const input of [search, show, sort]) {
    input.addEventListener("input", () => { box.scrollTop = 0; refresh(); });
  }
  for (const name of Object.keys(FILTERS)) show.append(element("option", "", name));
  for (const name of Object.keys(SORTS)) sort.append(element("option", "", name));
  return {
    update(picture) {
      groups = picture.groups;
      now = picture.now;
      refresh();
    },
    choose,
  };
})();

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
