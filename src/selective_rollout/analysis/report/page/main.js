// The controls, the live numbers, and the first look.

(() => {
  const tau = document.getElementById("tau");
  const start = document.getElementById("start");

  function live() {
    const sum = totals();
    const share = (steps) => percentText(sum.steps ? steps / sum.steps : null);
    const items = [
      ["cuts", (sum.right + sum.wrong + sum.unknown).toLocaleString("en")],
      ["right", sum.right.toLocaleString("en")],
      ["wrong", sum.wrong.toLocaleString("en"), sum.wrong > 0],
      ["missed", (sum.zero - sum.right).toLocaleString("en")],
      ["steps saved, lossless", share(sum.lossless)],
      ["steps saved, lossy", share(sum.lossy)],
      ["signal-bearing lost", percentText(sum.loss)],
      ["efficiency", sum.efficiency === null ? "unknown" : sum.efficiency.toFixed(2)],
    ];
    document.getElementById("live").replaceChildren(...items.map(([name, value, bad]) => {
      const made = element("div", bad ? "bad" : "");
      made.append(element("dt", "", name), element("dd", "", value));
      return made;
    }));
  }

  function notes() {
    const n = (value) => value.toLocaleString("en");
    const counted = groups.filter((group) => group.counted).length;
    const sampled = page.drawn < page.total ? `a fair draw of ${n(counted)} from ${n(page.total)} groups` : `${n(counted)} of ${n(page.total)} groups`;
    document.getElementById("live-note").textContent =
      `Counted on ${sampled}. A threshold picked by looking at these numbers is not certified by them.`;
    const extra = groups.length - page.drawn;
    const trees = Object.keys(page.trees).length;
    const parts = [];
    if (page.drawn < page.total) parts.push(`The list holds a fair draw of ${n(page.drawn)} of the ${n(page.total)} groups${extra ? ` and ${n(extra)} more that the gate cuts` : ""}.`);
    if (trees < groups.length) parts.push(`The actions of ${n(trees)} groups are embedded, wrong cuts first.`);
    document.getElementById("explorer-note").textContent = parts.join(" ");
  }

  function showControls() {
    document.getElementById("tau-value").textContent = shortNumber(state.tau);
    document.getElementById("start-value").textContent = state.start;
    document.getElementById("reset").disabled = state.tau === gate.tau && state.start === gate.start;
  }

  start.max = Math.max(curves.longest, gate.start);
  tau.step = Number.isInteger(Math.round(gate.tau * 1e6) / 5000) ? 0.005 : 0.001;
  tau.value = gate.tau;
  start.value = gate.start;
  tau.addEventListener("input", () => setGate(Number(tau.value), state.start));
  start.addEventListener("input", () => setGate(state.tau, Number(start.value)));
  document.getElementById("reset").addEventListener("click", () => {
    tau.value = gate.tau;
    start.value = gate.start;
    setGate(gate.tau, gate.start);
  });
  document.getElementById("controls").addEventListener("submit", (event) => event.preventDefault());
  on("gate", showControls);
  on("gate", live);
  notes();
  setGate(gate.tau, gate.start);
  const first = groups.find((group) => group.cut !== null && group.zeroVariance === false && String(group.place) in page.trees);
  const shown = first || groups.find((group) => group.cut !== null && String(group.place) in page.trees) || list.first();
  if (shown) list.reveal(shown);
})();
