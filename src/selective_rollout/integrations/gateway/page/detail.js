// One group: what the gate saw and said, and how each rollout is doing.

const detail = (() => {
  const box = document.getElementById("detail");
  let shown = "";

  function begin(line) {
    shown = "";
    box.replaceChildren(element("h3", "", line.group), element("p", "kind", "asking the gateway"));
  }

  function show(group, now) {
    if (group === null) {
      shown = "";
      box.replaceChildren(element("p", "kind", "This group is over, and the gateway has let go of it. The recording has it."));
      return;
    }
    const { idle_s: idle, ...rest } = group;
    const text = JSON.stringify(rest);
    if (text === shown) {
      say("detail-idle", ago(idle));
      return;
    }
    shown = text;
    const scored = now.scored;
    const parts = [element("h3", "", group.group), kind(group), element("p", "said", sentence(group))];
    if (group.decisions.length) parts.push(decisions(group, scored));
    parts.push(element("h4", "", "Rollouts"), rollouts(group));
    box.replaceChildren(...parts);
  }

  function kind(group) {
    const made = element("p", "kind");
    const facts = [STATES[group.state] ?? group.state, plural(group.size, "rollout"), group.mode];
    if (group.audited) facts.push("drawn for an audit");
    if (group.task_id !== group.group) facts.push(`task ${group.task_id}`);
    facts.push(`${tokens(group.completion_tokens, group.unknown_requests)} completion tokens`);
    if (group.unknown_requests) facts.push(uncountedNote(group.unknown_requests));
    const idle = element("span", "", ago(group.idle_s));
    idle.id = "detail-idle";
    made.append(`${facts.join(" · ")} · `, idle);
    return made;
  }

  function sentence(group) {
    const after = group.tokens_after_fire
      ? ` ${plural(group.tokens_after_fire, "known token")} came after that.` : "";
    const last = group.decisions.at(-1);
    const step = group.fired_at;
    if (group.cut_as === "drop") return `The gate stopped this group at step ${group.cut_at}. Its rollouts were told with HTTP 410.${after}`;
    if (group.cut_as === "survivor") return `The gate stopped this group at step ${group.cut_at}. Rollout ${group.survivor ?? "?"} answers for all of it.${after}`;
    if (group.late_veto) return `The gate fired at step ${step}, and rewards that were known by then turned the cut into keep.${after}`;
    if (step !== null && group.audited) return `The gate fired at step ${step}. The group was drawn for an audit, so it ran on.${after}`;
    if (step !== null) return `The gate fired at step ${step}. Nothing was stopped: observe mode.${after}`;
    if (last) return `The gate looked at step ${last.step} and let the group run.`;
    if (group.state === "ended") return "All rollouts ended before the gate could look.";
    if (group.next_check === null) return "The gate is off for this group.";
    return `The gate looks at step ${group.next_check}, once every rollout is there or has ended. All have reached step ${group.step}.`;
  }

  function decisions(group, scored) {
    const made = element("div", "scroll");
    const table = element("table", "numbers");
    const head = element("tr");
    for (const name of ["step", scored ? "P(signal-bearing)" : "distance", "tau", "", "decision"]) head.append(element("th", "", name));
    table.append(element("thead"));
    table.tHead.append(head);
    const body = table.createTBody();
    for (const one of group.decisions.toReversed()) {
      const value = scored ? one.p_signal : one.distance;
      const bounds = scored ? null : one.bounds;
      const line = { compared: value, bounds, tau: one.tau ?? group.tau, fired_at: one.fires ? one.step : null };
      const bar = element("td", "bar");
      const gauge = meter(line);
      gauge.lastChild.remove();
      bar.append(gauge);
      const row = element("tr");
      row.append(element("td", "", String(one.step)), element("td", "", compared(value, bounds)), element("td", "", String(line.tau)), bar,
        element("td", one.fires ? "fired" : "", REASONS[one.reason] ?? one.reason));
      body.append(row);
    }
    made.append(table);
    return made;
  }

  function rollouts(group) {
    const made = element("ol", "rollouts");
    made.append(...group.members.map((member) => rollout(member, group)));
    return made;
  }

  function rollout(member, group) {
    const made = element("li");
    const head = element("p", "who");
    const mark = member.held ? "h" : Object.keys(MARKS).find((one) => MARKS[one] === member.status);
    head.append(element("i", `is-${mark}`), element("b", "", `rollout ${member.rollout}`));
    if (group.survivor === member.rollout) head.append(element("span", "", "survivor"));
    const busy = member.held ? "held at the check" : member.in_flight ? "asking the model" : "";
    const facts = [member.status, plural(member.steps, "step")];
    if (busy && member.status === "running") facts.push(busy);
    facts.push(`${tokens(member.completion_tokens, member.unknown_requests)} tokens`);
    if (member.reward !== null) facts.push(`reward ${member.reward}`);
    head.append(element("span", "", facts.join(" · ")));
    made.append(head);
    if (member.last_action !== null) made.append(element("code", "", member.last_action));
    if (member.answer !== null) made.append(labelled("answer", member.answer));
    if (member.failure !== null) made.append(labelled("failed", member.failure));
    return made;
  }

  function labelled(name, text) {
    const made = element("p", "labelled");
    made.append(element("span", "", `${name} `), element("bdi", "", text));
    return made;
  }

  return { begin, show };
})();
