// The head of the page: how the gateway is set up, totals, and every group's latest decision against tau.

const BINS = 50;
const KINDS = [
  ["fired", "the gate fired"],
  ["vetoed", "below tau, kept for another reason"],
  ["kept", "not below tau"],
];

const overview = (() => {
  let wide = 0;

  function show(now) {
    const rule = `${now.scored ? "P(signal-bearing)" : "distance"} < ${now.tau} at step ${now.start_step}` +
      (now.check_every ? `, then every ${now.check_every}` : "");
    say("title", now.mode === "enforce" ? "Enforcing" : "Observing: nothing is stopped");
    list("facts", [`stop if ${rule}`, `outcome ${now.outcome}`, now.upstream]);
    list("alerts", [
      now.alarm && `The audits rang the alarm, so groups begun since then are only observed: ${now.alarm}`,
      !now.recording && "The trace cannot be written: requests pass unrecorded and no new group is taken.",
    ].filter(Boolean));
    document.getElementById("tiles").replaceChildren(...tiles(now));
    histogram(now);
  }

  function list(id, texts) {
    const box = document.getElementById(id);
    if ([...box.children].map((one) => one.textContent).join("\n") === texts.join("\n")) return;
    box.replaceChildren(...texts.map((text) => element("li", "", text)));
  }

  function tiles(now) {
    const late = now.late_vetoes ? `, ${count(now.late_vetoes)} vetoed late` : "";
    const did = now.mode === "enforce" || now.cut
      ? `${count(now.cut)} cut, ${count(now.audited)} audited${late}`
      : "none stopped: observe mode";
    return [
      tile("Open groups", count(now.open_groups), [
        now.held ? `${plural(now.held, "request")} held at a check` : "nobody held",
        `${plural(now.ended_groups, "group")} ended`,
      ]),
      tile("The gate fired", count(now.fired), [`of ${plural(now.decided, "group")} decided`, did]),
      tile("Completion tokens", count(now.completion_tokens), [uncountedNote(now.unknown_requests) || (now.completion_tokens ? "all answers counted" : "")]),
      avoided(now),
    ];
  }

  /** Measured where the groups ran on; for groups that were stopped an estimate, named so. */
  function avoided(now) {
    return now.mode === "enforce" ? estimated(now.avoided, now.audit_rate) : measured(now.avoided, now.outcome);
  }

  function estimated(part, rate) {
    const notes = part.estimate === null ? [whyNoEstimate(part, rate)] : [
      `estimate for ${plural(part.cuts, "cut")}, from ${plural(part.audits, "audited group")}`,
      `${count(part.low)} to ${count(part.high)} if all were like one of those`,
    ];
    if (part.ran_on) notes.push(`${count(part.measured)} measured in ${plural(part.ran_on, "group")} not stopped`);
    const value = part.estimate === null ? (part.cuts ? "unknown" : "none") : `≈ ${count(part.estimate)}`;
    return tile("Tokens avoided", value, [...notes, uncountedNote(part.uncounted)], "estimate");
  }

  function measured(part, outcome) {
    if (!part.ran_on) return tile("Tokens a cut would have avoided", "none", ["the gate fired in no ended group"]);
    const most = outcome === "survivor" && part.measured !== null ? "at most " : "";
    return tile("Tokens a cut would have avoided", most + count(part.measured), [
      `measured in ${plural(part.ran_on, "ended group")} after the gate fired`,
      most && "the survivor's own are among them",
      uncountedNote(part.uncounted),
    ]);
  }

  function whyNoEstimate(part, rate) {
    if (!part.cuts) return "no stopped group has ended";
    return rate ? "no audited group has ended yet" : "no audits, so nobody knows what stopped groups would have generated";
  }

  function tile(name, value, notes, className = "") {
    const made = element("div", className);
    const body = element("dd");
    body.append(element("strong", "", value), ...notes.filter(Boolean).map((note) => element("span", "", note)));
    made.append(element("dt", "", name), body);
    return made;
  }

  function kindOf(group) {
    if (group.fired_at !== null) return "fired";
    return group.compared < group.tau ? "vetoed" : "kept";
  }

  function histogram(now) {
    const groups = now.groups.filter((group) => group.compared !== null);
    const bins = Array.from({ length: BINS }, () => ({ fired: 0, vetoed: 0, kept: 0 }));
    for (const group of groups) bins[Math.min(BINS - 1, Math.floor(group.compared * BINS + 1e-9))][kindOf(group)] += 1;
    say("against", now.scored ? "P(signal-bearing) against tau" : "Distance against tau");
    say("against-about", groups.length
      ? `The latest decision of ${plural(groups.length, "group")}${now.left_out ? ` (${count(now.left_out)} more are not listed)` : ""}.`
      : `No decision yet: the gate looks once all rollouts of a group have reached step ${now.start_step} or ended.`);
    const box = document.getElementById("histogram");
    const legend = document.getElementById("legend");
    box.toggleAttribute("hidden", !groups.length);
    legend.hidden = !groups.length;
    if (!groups.length) return;
    const totals = Object.fromEntries(KINDS.map(([kind]) => [kind, bins.reduce((sum, bin) => sum + bin[kind], 0)]));
    draw(box, bins, now.tau);
    box.setAttribute("aria-label", KINDS.map(([kind, words]) => `${words}: ${count(totals[kind])}`).join(", "));
    legend.replaceChildren(...KINDS.map(([kind, words]) => {
      const item = element("li");
      item.append(element("i", `fill-${kind}`), `${words} `, element("b", "", count(totals[kind])));
      return item;
    }));
  }

  function draw(box, bins, tau) {
    wide = box.getBoundingClientRect().width || wide || 640;
    const high = 150, base = 122, top = 18, left = 8, right = 8;
    const x = (value) => left + value * (wide - left - right);
    const most = Math.max(...bins.map((bin) => bin.fired + bin.vetoed + bin.kept));
    const unit = Math.min(12, (base - top) / most);
    box.setAttribute("viewBox", `0 0 ${wide} ${high}`);
    const parts = [];
    for (const [place, bin] of bins.entries()) {
      let y = base;
      for (const [kind] of KINDS) {
        const tall = bin[kind] * unit;
        y -= tall;
        if (tall) parts.push(svgElement("rect", { class: `fill-${kind}`, x: x(place / BINS) + 0.5, y, width: Math.max(1, x(1 / BINS) - left - 1), height: tall }));
      }
    }
    parts.push(svgElement("line", { class: "axis", x1: x(0), x2: x(1), y1: base + 0.5, y2: base + 0.5 }));
    for (const value of [0, 0.25, 0.5, 0.75, 1]) {
      const anchor = value === 0 ? "start" : value === 1 ? "end" : "middle";
      parts.push(svgElement("text", { x: x(value), y: base + 18, "text-anchor": anchor }, String(value)));
    }
    parts.push(svgElement("line", { class: "tau", x1: x(tau), x2: x(tau), y1: 4, y2: base }));
    parts.push(svgElement("text", { class: "tau", x: x(tau) + (tau > 0.8 ? -5 : 5), y: 13, "text-anchor": tau > 0.8 ? "end" : "start" }, `tau ${tau}`));
    box.replaceChildren(...parts);
  }

  return { show };
})();
