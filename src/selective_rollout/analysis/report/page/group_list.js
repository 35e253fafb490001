// The list of groups, for every page of the package: only the rows in view exist, so ten thousand cost what twenty do.

/**
 * Works the elements #list, #list-space, #search, #show, #sort and #found of the page.
 *
 * rowHeight: of each row, in pixels.
 * filters, sorts: for #show and #sort, by name: whether a group is shown, and the number to order groups by.
 * names(group): what #search looks for a group by.
 * found(some, all): what to say of so many groups.
 * fill(row, group): makes the content of a row.
 * isSelected(group), choose(group): which one is, and make it so.
 */
function groupList({ rowHeight, filters, sorts, names, found: foundText, fill, isSelected, choose }) {
  const box = document.getElementById("list");
  const space = document.getElementById("list-space");
  const search = document.getElementById("search");
  const show = document.getElementById("show");
  const sort = document.getElementById("sort");
  const count = document.getElementById("found");
  let groups = [];
  let found = [];

  function refresh(all = groups) {
    groups = all;
    const wanted = search.value.trim().toLowerCase();
    const passes = filters[show.value];
    const key = sorts[sort.value];
    found = groups
      .filter((group) => passes(group) && names(group).some((name) => name.toLowerCase().includes(wanted)))
      .map((group) => [key(group), group])
      .sort((a, b) => a[0] - b[0])
      .map((pair) => pair[1]);
    space.style.height = `${found.length * rowHeight}px`;
    const text = foundText(found.length, groups.length);
    if (count.textContent !== text) count.textContent = text;
    paint();
  }

  function paint() {
    const first = Math.max(0, Math.floor(box.scrollTop / rowHeight) - 4);
    const last = Math.min(found.length, Math.ceil((box.scrollTop + box.clientHeight) / rowHeight) + 4);
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
    made.style.top = `${i * rowHeight}px`;
    made.setAttribute("role", "option");
    made.setAttribute("aria-selected", String(isSelected(group)));
    made.setAttribute("aria-setsize", found.length);
    made.setAttribute("aria-posinset", i + 1);
    made.addEventListener("click", () => choose(group));
    fill(made, group);
    return made;
  }

  function move(by) {
    if (!found.length) return;
    const place = found.findIndex(isSelected);
    const next = Math.max(0, Math.min(found.length - 1, place < 0 ? 0 : place + by));
    keepInView(next);
    choose(found[next]);
  }

  function keepInView(i) {
    const top = i * rowHeight;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + rowHeight > box.scrollTop + box.clientHeight) box.scrollTop = top + rowHeight - box.clientHeight;
  }

  function reveal(group) {
    if (!found.includes(group)) {
      search.value = "";
      show.selectedIndex = 0;
      refresh();
    }
    keepInView(found.indexOf(group));
    choose(group);
  }

  box.addEventListener("keydown", (event) => {
    const screen = Math.max(1, Math.floor(box.clientHeight / rowHeight) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: screen, PageUp: -screen, Home: -found.length, End: found.length };
    if (!(event.key in steps)) return;
    event.preventDefault();
    move(steps[event.key]);
  });
  box.addEventListener("scroll", paint, { passive: true });
  for (const input of [search, show, sort]) {
    input.addEventListener("input", () => { box.scrollTop = 0; refresh(); });
  }
  for (const name of Object.keys(filters)) show.append(element("option", "", name));
  for (const name of Object.keys(sorts)) sort.append(element("option", "", name));
  return { refresh, paint, reveal, first: () => found[0] };
}

/** One square a rollout, `more` of which are not drawn; `words` say them all. */
function strip(classes, more, words) {
  const made = element("span", "strip");
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", words);
  made.append(...classes.map((name) => element("i", name)));
  if (more > 0) made.append(element("span", "", `+${more}`));
  return made;
}
