// Asks the gateway for pictures: one request at a time, none while nobody looks or the right key is missing.

const BASE = "selective-rollout/v1";
const EVERY_MS = 1000;
const PATIENCE_MS = 15000;

const state = { selected: null, now: 0 };

const feed = (() => {
  let key = sessionStorage.getItem("key") ?? "";
  let timer = 0;
  let asking = false;
  let again = false;
  let misses = 0;
  let locked = document.body.dataset.key === "required" && !key;
  let onPicture = () => {};

  async function get(path) {
    const headers = key ? { authorization: `Bearer ${key}` } : {};
    const answer = await fetch(`${BASE}/${path}`, {
      headers, cache: "no-store", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(PATIENCE_MS),
    });
    return { status: answer.status, value: answer.status === 200 ? await answer.json() : null };
  }

  async function ask() {
    clearTimeout(timer);
    if (asking) { again = true; return; }
    asking = true;
    again = false;
    const asked = key;
    const picture = await take().catch(() => ({ status: 0 }));
    asking = false;
    misses = picture.status === 0 ? misses + 1 : 0;
    locked = picture.status === 401;
    if (asked === key) onPicture(picture);
    if (again) ask();
    else if (!document.hidden && !locked) timer = setTimeout(ask, EVERY_MS * Math.min(1 + misses, 5));
  }

  async function take() {
    const picture = await get("live");
    const wanted = state.selected;
    if (picture.status !== 200 || wanted === null) return picture;
    const group = await get(`groups/${encodeURIComponent(wanted)}`);
    return { ...picture, wanted, group: group.value };
  }

  document.addEventListener("visibilitychange", () => { if (!document.hidden && !locked) ask(); });
  return {
    ask,
    start(listener) {
      onPicture = listener;
      if (locked) onPicture({ status: 401 });
      else ask();
    },
    hasKey: () => key !== "",
    use(other) {
      key = other;
      if (key) sessionStorage.setItem("key", key);
      else sessionStorage.removeItem("key");
      state.selected = null;
      ask();
    },
  };
})();
