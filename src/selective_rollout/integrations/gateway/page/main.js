// Puts each picture on the page.

(() => {
  const byId = (id) => document.getElementById(id);
  const door = byId("door");

  function link(kind, text) {
    byId("lamp").className = kind;
    say("link", text);
  }

  function lockedOut() {
    link("off", feed.hasKey() ? "the gateway does not know this key" : "the gateway asks for a client key");
    say("door-title", "Enter a client key");
    say("door-about", "serve printed the key when it started, or it is one of --client-keys. It stays in this tab.");
    door.open = true;
    byId("content").hidden = byId("empty").hidden = true;
  }

  function emptyWords(now) {
    if (now.other_groups) return `No groups under ${feed.hasKey() ? "this key" : "no key"}. ${plural(now.other_groups, "group belongs", "groups belong")} to other keys: enter the API key that your agents send.`;
    return "No groups yet. Point an agent at this gateway with /g/GROUP/ROLLOUT/GROUP_SIZE/v1 in its base URL.";
  }

  function show({ status, value: now, wanted, group }) {
    if (status === 401) return lockedOut();
    if (status !== 200) return link("off", status ? `the gateway answers ${status}, trying again` : "no answer from the gateway, trying again");
    link("on", now.mode === "enforce" ? "live, enforce mode" : "live, observe mode");
    say("door-title", "Show the groups of another key");
    const any = now.groups.length > 0;
    byId("content").hidden = !any;
    byId("empty").hidden = any;
    overview.show(now);
    if (!any) return say("empty", emptyWords(now));
    state.now = now.now;
    list.refresh(now.groups);
    if (state.selected === null) choose(now.groups[0]);
    else if (wanted === state.selected) detail.show(group, now);
  }

  byId("door-form").addEventListener("submit", (event) => {
    event.preventDefault();
    feed.use(byId("key").value.trim());
    byId("key").value = "";
    door.open = false;
  });
  feed.start(show);
})();
