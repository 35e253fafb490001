// All groups at once: distance over steps. The lines are painted once; what follows tau lies on top.

const MOST_LINES = 2000;
const DRAW_ORDER = ["mixed", "unknown", "stopped", "constant", "all_fail", "all_success"];

const curves = (() => {
  const canvas = document.getElementById("curves");
  const tip = document.getElementById("tip");
  const lines = document.createElement("canvas");
  const margin = { left: 38, right: 10, top: 12, bottom: 30 };
  const stride = Math.max(1, Math.ceil(groups.length / MOST_LINES));
  const drawn = groups.filter((group, i) => i % stride === 0 && group.distances.length);
  const longest = drawn.reduce((most, group) => Math.max(most, group.distances.length), gate.start);
  let width = 0, height = 0, near = null;

  const x = (k) => margin.left + (width - margin.left - margin.right) * (longest > 1 ? (k - 1) / (longest - 1) : 0.5);
  const y = (d) => margin.top + (height - margin.top - margin.bottom) * (1 - d);

  const font = () => `12px ${getComputedStyle(document.body).fontFamily}`;

  function resize() {
    const scale = window.devicePixelRatio || 1;
    width = canvas.clientWidth;
    height = canvas.clientHeight;
    if (!width || !height) return;
    for (const one of [canvas, lines]) {
      one.width = Math.round(width * scale);
      one.height = Math.round(height * scale);
      one.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    }
    paintLines();
    paint();
  }

  function trace(context, group) {
    let pen = false;
    context.beginPath();
    group.distances.forEach((d, i) => {
      if (d === null) { pen = false; return; }
      if (pen) context.lineTo(x(i + 1), y(d)); else context.moveTo(x(i + 1), y(d));
      pen = true;
    });
    context.stroke();
  }

  function paintAxes(context) {
    context.font = font();
    context.lineWidth = 1;
    context.fillStyle = colour("soft");
    context.strokeStyle = colour("line");
    context.textAlign = "right";
    for (const d of [0, 0.25, 0.5, 0.75, 1]) {
      context.beginPath();
      context.moveTo(margin.left, y(d));
      context.lineTo(width - margin.right, y(d));
      context.stroke();
      context.fillText(d.toFixed(2), margin.left - 7, y(d) + 4);
    }
    context.textAlign = "center";
    const every = Math.max(1, Math.ceil(longest / (width < 500 ? 5 : 10) / 5) * 5);
    for (let k = longest > every ? every : longest; k <= longest; k += every) context.fillText(k, x(k), height - 10);
    context.fillText("1", x(1), height - 10);
  }

  function paintLines() {
    const context = lines.getContext("2d");
    context.clearRect(0, 0, width, height);
    paintAxes(context);
    context.lineJoin = "round";
    context.lineWidth = drawn.length < 30 ? 1.6 : 1;
    for (const kind of DRAW_ORDER) {
      const some = drawn.filter((group) => group.kind === kind);
      if (!some.length || state.hidden.has(kind)) continue;
      context.strokeStyle = colour(kind);
      context.globalAlpha = Math.max(0.12, Math.min(0.9, 40 / (some.length + 1)));
      for (const group of some) trace(context, group);
    }
    context.globalAlpha = 1;
  }

  function paintGate(context) {
    context.font = font();
    context.strokeStyle = colour("accent");
    context.fillStyle = colour("accent");
    context.lineWidth = 1.5;
    context.setLineDash([6, 4]);
    context.beginPath();
    context.moveTo(x(Math.min(state.start, longest)), y(state.tau));
    context.lineTo(width - margin.right, y(state.tau));
    context.stroke();
    context.setLineDash([2, 3]);
    context.beginPath();
    context.moveTo(x(Math.min(state.start, longest)), margin.top);
    context.lineTo(x(Math.min(state.start, longest)), height - margin.bottom);
    context.stroke();
    context.setLineDash([]);
    context.textAlign = "right";
    context.fillText(`tau ${shortNumber(state.tau)}`, width - margin.right, y(state.tau) - 5);
  }

  function paintCut(context, group) {
    const d = group.distances[group.cut - 1];
    if (d === undefined || d === null) return;
    const [cx, cy] = [x(group.cut), y(d)];
    context.beginPath();
    if (group.zeroVariance === false) {
      context.strokeStyle = colour("wrong");
      context.moveTo(cx - 4, cy - 4); context.lineTo(cx + 4, cy + 4);
      context.moveTo(cx + 4, cy - 4); context.lineTo(cx - 4, cy + 4);
      context.stroke();
    } else {
      // What a stopped or unscored group would have become is unknown: its mark stays hollow.
      context.fillStyle = colour(group.zeroVariance ? "ink" : "paper");
      context.strokeStyle = colour("ink");
      context.arc(cx, cy, 2.5, 0, 7);
      context.fill();
      if (!group.zeroVariance) context.stroke();
    }
  }

  function paint() {
    if (!width || !height) return;
    const context = canvas.getContext("2d");
    context.clearRect(0, 0, width, height);
    context.drawImage(lines, 0, 0, width, height);
    if (page.adjustable) paintGate(context);
    context.lineWidth = 2;
    for (const group of drawn) if (group.cut !== null && !state.hidden.has(group.kind)) paintCut(context, group);
    for (const [group, name] of [[state.selected, "ink"], [near, "accent"]]) {
      if (!group) continue;
      context.strokeStyle = colour(name);
      context.lineWidth = 2.5;
      trace(context, group);
    }
  }

  function nearest(event) {
    const box = canvas.getBoundingClientRect();
    const across = (event.clientX - box.left - margin.left) / (width - margin.left - margin.right);
    const k = Math.round(across * (longest - 1)) + 1;
    const at = event.clientY - box.top;
    let best = null, gap = 24;
    for (const group of drawn) {
      const d = group.distances[k - 1];
      if (d === undefined || d === null || state.hidden.has(group.kind)) continue;
      const away = Math.abs(y(d) - at);
      if (away < gap) { gap = away; best = group; }
    }
    return { group: best, k, left: event.clientX - box.left, top: at };
  }

  canvas.addEventListener("pointermove", (event) => {
    const found = nearest(event);
    canvas.style.cursor = found.group ? "pointer" : "crosshair";
    tip.hidden = !found.group;
    if (found.group) {
      tip.replaceChildren(
        element("div", "", found.group.id),
        element("div", "", `${KIND_WORDS[found.group.kind]} · distance ${shortNumber(found.group.distances[found.k - 1])} at step ${found.k}`),
      );
      tip.style.left = `${Math.max(0, Math.min(found.left + 14, width - tip.offsetWidth))}px`;
      tip.style.top = `${Math.max(0, Math.min(found.top + 14, height - tip.offsetHeight))}px`;
    }
    if (found.group !== near) { near = found.group; paint(); }
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; near = null; paint(); });
  canvas.addEventListener("click", (event) => {
    const { group } = nearest(event);
    if (!group) return;
    list.reveal(group);
    document.getElementById("explorer").scrollIntoView();
  });

  function legend() {
    const box = document.getElementById("curve-legend");
    for (const kind of page.kinds) {
      const count = groups.filter((group) => group.kind === kind).length;
      if (!count) continue;
      const button = element("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.append(element("i", `fill-${kind}`), `${KIND_WORDS[kind]} `, element("b", "", count.toLocaleString("en")));
      button.addEventListener("click", () => {
        if (!state.hidden.delete(kind)) state.hidden.add(kind);
        button.setAttribute("aria-pressed", String(!state.hidden.has(kind)));
        paintLines();
        paint();
      });
      box.append(button);
    }
    box.append(element("span", "", "● cut, right"), element("span", "", "✕ cut, wrong"));
    if (groups.some((group) => group.zeroVariance === null)) box.append(element("span", "", "○ cut, unknown"));
    if (stride > 1) box.append(element("span", "", `${drawn.length.toLocaleString("en")} of ${groups.length.toLocaleString("en")} lines drawn`));
  }

  legend();
  on("gate", paint);
  on("selection", paint);
  new ResizeObserver(resize).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", resize);
  return { longest };
})();
