// One group: its distance over steps, and its rollouts side by side, in one cell as long as they act alike.

const detail = (() => {
  const box = document.getElementById("detail");
  let cells = new Map();
  let alike = new Map();
  let lit = [];
  let frame = null;
  let marks = [];

  function show() {
    const group = state.selected;
    if (!group) return;
    const scrolled = frame && frame.dataset.group === String(group.place) ? [frame.scrollLeft, frame.scrollTop] : [0, 0];
    box.replaceChildren(
      heading(group), facts(group), element("p", "said", sentence(group)), curve(group), treeFrame(group),
    );
    if (frame) frame.scrollTo(...scrolled);
  }

  function heading(group) {
    const made = element("h3", "", group.id);
    made.dir = "auto";
    return made;
  }

  function facts(group) {
    const made = element("p", "kind");
    made.append(element("i", `fill-${group.kind}`), KIND_WORDS[group.kind]);
    const steps = stepsAfter(group, 0).toLocaleString("en");
    made.append(` · ${group.members.length} of ${group.size} rollouts recorded · ${steps} steps`);
    if (group.task !== group.id) made.append(" · task ", element("bdi", "", group.task));
    if (group.recorded.audited) made.append(" · drawn for an audit");
    return made;
  }

  function sentence(group) {
    const parts = [];
    const tree = page.trees[group.place];
    if (tree) parts.push(splitSentence(group, tree));
    if (group.kind === "stopped") {
      const at = group.recorded.cutAt === null ? "" : ` after step ${group.recorded.cutAt}`;
      parts.push(`It was stopped${at} when it ran; how it would have ended nobody knows.`);
    } else if (group.cut !== null) {
      const left = stepsSaved(group, group.cut);
      const d = page.adjustable ? `distance ${shortNumber(group.distances[group.cut - 1])} is below ${shortNumber(state.tau)}, so ` : "";
      parts.push(`At step ${group.cut} ${d}the gate cuts it, ${left} steps early: ${cutJudgement(group)}.`);
    } else {
      const missed = group.zeroVariance ? " It ends with equal rewards all the same: missed." : "";
      parts.push(page.adjustable ? `The gate keeps it at step ${state.start}: ${whyKept(group, state.tau, state.start)}.${missed}` : `The gate keeps it.${missed}`);
    }
    return parts.join(" ");
  }

  function cutJudgement(group) {
    if (group.zeroVariance === null) return "right or wrong, nobody knows";
    return group.zeroVariance ? "rightly, all rewards end equal" : "wrongly, the rewards differ";
  }

  function splitSentence(group, tree) {
    const [actions, ended, children] = tree;
    const all = group.members.length === 2 ? "Both rollouts" : `All ${group.members.length} rollouts`;
    if (group.members.length < 2) return "There is one rollout.";
    if (!children.length) return `${all} do the same throughout.`;
    const ways = children.length + (ended.length ? 1 : 0);
    if (!actions.length) return `${all} split ${ways} ways at the first step.`;
    return `${all} act alike for ${actions.length} ${actions.length === 1 ? "step" : "steps"}, then split ${ways} ways.`;
  }

  function curve(group) {
    const [width, height, left, bottom] = [Math.max(280, box.clientWidth), 136, 30, 18];
    const last = Math.max(group.distances.length, 2);
    const x = (k) => left + (width - left - 8) * (k - 1) / (last - 1);
    const y = (d) => 6 + (height - bottom - 6) * (1 - d);
    const svg = svgElement("svg", { class: "curve", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Distance over steps" });
    for (const d of [0, 0.5, 1]) {
      svg.append(svgElement("line", { class: "grid", x1: left, x2: width - 8, y1: y(d), y2: y(d) }));
      svg.append(svgElement("text", { x: left - 7, y: y(d) + 4, "text-anchor": "end" }, String(d)));
    }
    if (page.adjustable) {
      svg.append(svgElement("line", { class: "tau", x1: x(Math.min(state.start, last)), x2: width - 8, y1: y(state.tau), y2: y(state.tau) }));
      if (state.start <= last) svg.append(svgElement("line", { class: "start", x1: x(state.start), x2: x(state.start), y1: 6, y2: height - bottom }));
    }
    const points = group.distances.flatMap((d, i) => (d === null ? [] : [`${x(i + 1).toFixed(1)},${y(d).toFixed(1)}`]));
    svg.append(svgElement("polyline", { class: "path", points: points.join(" ") }));
    for (let k = 5; k <= last; k += Math.ceil(last / 50) * 5) svg.append(svgElement("text", { x: x(k), y: height - 3, "text-anchor": "middle" }, String(k)));
    return svg;
  }

  function treeFrame(group) {
    const tree = page.trees[group.place];
    frame = null;
    if (!tree) return element("p", "about", "Its actions are not embedded: the page holds those of a sample, all wrong cuts included as far as they fit.");
    frame = element("div", "tree-frame");
    frame.dataset.group = group.place;
    const grid = element("div", "tree");
    grid.id = "tree";
    grid.tabIndex = 0;
    grid.setAttribute("role", "group");
    grid.setAttribute("aria-label", "Actions of the rollouts side by side, one row a step. Arrow keys move between actions.");
    cells = new Map();
    alike = new Map();
    lit = [];
    const order = leaves(tree);
    grid.style.gridTemplateColumns = `3.2rem repeat(${order.length}, minmax(5.6rem, 1fr))`;
    grid.style.minWidth = `${3.2 + 5.6 * order.length}rem`;
    marks = marksOf(group);
    const depth = place(group, tree, 1, 1, grid, order.length);
    order.forEach((member, i) => grid.append(head(group, member, i), end(group, member, i)));
    gutter(grid, depth);
    drawMarks(group, grid, depth);
    grid.addEventListener("keydown", (event) => walk(event, grid));
    frame.append(grid);
    return frame;
  }

  function leaves([, ended, children]) {
    return [...ended, ...children.flatMap(leaves)];
  }

  function position(node, row, column, columns = 1) {
    node.style.gridRow = row;
    node.style.gridColumn = `${column + 1} / span ${columns}`;
    return node;
  }

  /** Grid row of a step: the head comes first, and each mark takes a row of its own. */
  function rowOf(step) {
    return step + 1 + marks.filter((mark) => mark.k < step).length;
  }

  /** Put a branch's cells into the grid. Returns the deepest step. */
  function place(group, branch, step, column, grid, everyone) {
    const [actions, ended, children] = branch;
    const width = leaves(branch).length;
    actions.forEach((number, i) => {
      const text = page.actions[number];
      const cell = element("div", "cell", text === "" ? "no action" : text);
      cell.dir = "auto";
      cell.title = text;
      cell.dataset.step = step + i;
      cell.dataset.action = number;
      if (text === "") cell.classList.add("empty");
      if (width > 1) {
        cell.classList.add(width === everyone ? "everyone" : "shared");
        cell.append(element("span", "times", `×${width}`));
      }
      if (i === actions.length - 1 && children.length + (ended.length ? 1 : 0) > 1) cell.classList.add("splits");
      cell.addEventListener("pointerenter", () => highlight(number));
      cell.addEventListener("pointerleave", () => highlight(null));
      grid.append(position(cell, rowOf(step + i), column, width));
      for (let c = column; c < column + width; c++) cells.set(`${step + i}/${c}`, cell);
      if (!alike.has(number)) alike.set(number, []);
      alike.get(number).push(cell);
    });
    let deepest = step + actions.length - 1;
    let next = column + ended.length;
    for (const child of children) {
      deepest = Math.max(deepest, place(group, child, step + actions.length, next, grid, everyone));
      next += leaves(child).length;
    }
    return deepest;
  }

  function head(group, member, i) {
    const made = element("div", "head");
    const reward = group.rewards[group.members.indexOf(member)];
    made.append(element("b", "", `rollout ${member}`), element("span", rewardClass(reward), rewardWords(reward)));
    return position(made, 1, i + 1);
  }

  function rewardWords(reward) {
    return reward === null ? "no reward" : `reward ${shortNumber(reward)}`;
  }

  function end(group, member, i) {
    const at = group.members.indexOf(member);
    const shown = Math.min(group.lengths[at], page.treeSteps);
    const reward = group.rewards[at];
    const made = element("div", `end ${rewardClass(reward)}`);
    made.append(element("b", "", rewardWords(reward)), STATUS_WORDS[group.statuses[at]]);
    if (group.lengths[at] > shown) made.append(`, ${(group.lengths[at] - shown).toLocaleString("en")} more steps not shown`);
    return position(made, rowOf(shown + 1), i + 1);
  }

  function gutter(grid, depth) {
    const corner = element("div", "head gutter", "step");
    grid.append(position(corner, 1, 0));
    for (let k = 1; k <= depth; k++) {
      const made = element("div", "gutter", String(k));
      if (page.adjustable && k === state.start) {
        made.classList.add("check");
        made.title = "start_step";
      }
      grid.append(position(made, rowOf(k), 0));
    }
  }

  /** Where each gate cuts, in the order of the steps. */
  function marksOf(group) {
    const found = [];
    const add = (k, text, className) => { if (k !== null) found.push({ k, text, className }); };
    const bad = group.zeroVariance === false ? " bad" : "";
    add(group.cut, `${page.gates[0].name} cuts here, after step ${group.cut}`, `mark${bad}`);
    page.gates.slice(1).forEach((other, i) => {
      add(group.cuts[i + 1], `${other.name} would cut here, after step ${group.cuts[i + 1]}`, "mark other");
    });
    const { cutAt, wouldCutAt, audited } = group.recorded;
    add(cutAt, `cut here when it ran, after step ${cutAt}`, "mark other");
    if (audited) add(wouldCutAt, `spared here by the audit when it ran, after step ${wouldCutAt}`, "mark other");
    return found.sort((a, b) => a.k - b.k);
  }

  /** Draw the marks across the tree, and dim what lies below the first gate's. */
  function drawMarks(group, grid, depth) {
    marks.forEach((mark, i) => {
      if (mark.k > depth) return;
      const made = element("div", mark.className);
      made.append(element("span", "", mark.text));
      made.style.gridRow = mark.k + 2 + i;
      made.style.gridColumn = "1 / -1";
      grid.append(made);
    });
    if (group.cut === null) return;
    for (const node of grid.querySelectorAll(".cell")) {
      node.classList.toggle("after", Number(node.dataset.step) > group.cut);
    }
  }

  /** Show where else the same action is taken. */
  function highlight(number) {
    for (const cell of lit) cell.classList.remove("same");
    lit = alike.get(number) || [];
    for (const cell of lit) cell.classList.add("same");
  }

  function walk(event, grid) {
    const move = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    if (!move) return;
    event.preventDefault();
    const at = (grid.dataset.at || "").split("/").map(Number);
    let [step, column] = at.length === 2 ? at : [0, 1];
    const here = cells.get(`${step}/${column}`);
    let next = here;
    do {
      step += move[0];
      column += move[1];
      next = cells.get(`${step}/${column}`);
    } while (next && next === here);
    if (!next) return;
    grid.querySelector(".current")?.classList.remove("current");
    next.classList.add("current");
    next.scrollIntoView({ block: "nearest", inline: "nearest" });
    grid.dataset.at = `${step}/${column}`;
    highlight(Number(next.dataset.action));
  }

  let shownWidth = box.clientWidth;
  new ResizeObserver(() => {
    if (box.clientWidth === shownWidth) return;
    shownWidth = box.clientWidth;
    show();
  }).observe(box);
  on("gate", show);
  on("selection", show);
  return { show };
})();
