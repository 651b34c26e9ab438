// The source beside a step, and what moves a film: slider, buttons, keys.
const panes = new Map();
for (const pane of document.querySelectorAll(".source")) panes.set(pane.id, { pane, shown: "", at: null });
const showLine = (id, place) => {
  const it = panes.get(id);
  const [file, line] = [place.slice(0, place.lastIndexOf(":")), Number(place.slice(place.lastIndexOf(":") + 1))];
  if (it.at) it.at.classList.remove("at");
  it.at = null;
  const name = place ? file : it.shown || film.file;
  if (film.files[name] !== undefined && it.shown !== name) {
    it.shown = name;
    const pre = make("pre");
    film.files[name].replace(/\n$/, "").split("\n").forEach((text, i) => {
      const row = make("i", text);
      row.dataset.n = i + 1;
      pre.append(row);
    });
    it.pane.replaceChildren(pre);
  }
  $(`${id}-name`).textContent = name;
  if (!place || film.files[name] === undefined) return;
  it.at = it.pane.querySelectorAll("i")[line - 1];
  it.at.classList.add("at");
  const y = it.at.offsetTop, box = it.pane;
  if (y < box.scrollTop + 20 || y > box.scrollTop + box.clientHeight - 40) box.scrollTop = y - box.clientHeight / 2;
};
const drawSource = (n) => {
  const place = film.templates[T[n]][PLACE];
  const [main, ...frames] = place < 0 ? [0] : film.places[place];
  showLine("source", frames[main] ?? "");
  const via = frames.length - 1 > main ? frames.at(-1) : "";
  $("calls").textContent = frames.length > 1 ? frames.join(" › ") : "";
  // What has been shown once stays, so that the page does not jump.
  $("called").hidden = !via && !panes.get("header").shown;
  if (via) showLine("header", via);
  else if (panes.get("header").at) panes.get("header").at.classList.remove("at");
};

const slider = $("slider"), only = $("only");
let state = null, now = -1, playing = 0;
const seek = (n) => {
  const l = launchOf(n);
  if (!state || state.launch !== film.launches[l] || state.at > n) {
    state = new State(l);
    state.first = factsOf(l).slots?.first ?? state.first;
  }
  while (state.at < n) state.apply(state.at + 1);
};
const show = (n) => {
  now = Math.max(0, Math.min(COUNT - 1, n));
  seek(now);
  const l = launchOf(now);
  slider.value = now;
  const text = say(now, state);
  $("what").textContent = text;
  slider.setAttribute("aria-valuetext", `step ${now + 1}: ${text}`);
  $("where").textContent = `step ${now + 1} of ${COUNT}` +
    (film.launches.length > 1 ? `, launch ${l + 1} of ${film.launches.length} (grid ${film.launches[l].grid.join(" x ")})` : "");
  drawMemory(now, state);
  drawShared(now, state);
  drawThreads(now, state);
  drawSlots(now, state);
  drawBarriers(now, state);
  drawSource(now);
  for (const [name, value] of Object.entries(state.sums)) {
    $(`sum-${name}`).textContent = value;
    $(`sum-${name}`).parentElement.hidden = ["boxes", "products"].includes(name) && !value;
  }
  document.body.dataset.step = now;
};
const goOn = (from, by, wanted = () => true) => {
  for (let n = from + by; n >= 0 && n < COUNT; n += by)
    if ((only.value === "" || Number(only.value) === W[n]) && wanted(n)) return n;
  return by > 0 ? (only.value === "" ? COUNT - 1 : from) : only.value === "" ? 0 : from;
};
const isBarrier = (n) => /barrier$|wait$/.test(kindOf(n));
const stop = () => {
  clearInterval(playing);
  playing = 0;
  $("play").textContent = "play";
  $("what").setAttribute("aria-live", "polite");
};
const play = () => {
  if (playing) return stop();
  if (now === COUNT - 1) show(0);
  $("play").textContent = "pause";
  $("what").removeAttribute("aria-live");
  const speed = Number($("speed").value), each = Math.max(1, Math.round(speed / 20));
  playing = setInterval(() => {
    let n = now;
    for (let i = 0; i < each; ++i) n = goOn(n, 1);
    if (n === now) stop();
    else show(n);
    if (n === COUNT - 1) stop();
  }, 1000 * each / speed);
};
const actions = {
  first: () => show(0),
  back: () => show(goOn(now, -1)),
  next: () => show(goOn(now, 1)),
  last: () => show(COUNT - 1),
  barrier: () => show(goOn(now, 1, isBarrier)),
  before: () => show(goOn(now, -1, isBarrier)),
};
slider.max = COUNT - 1;
slider.addEventListener("input", () => { stop(); show(Number(slider.value)); });
for (const [id, action] of Object.entries(actions)) $(id).addEventListener("click", () => { stop(); action(); });
$("play").addEventListener("click", play);
$("speed").addEventListener("change", () => { if (playing) { stop(); play(); } });
only.addEventListener("change", () => { stop(); if (only.value !== "" && Number(only.value) !== W[now]) show(goOn(now, 1)); });
const KEYS = { ArrowLeft: "back", ArrowRight: "next", PageUp: "before", PageDown: "barrier", Home: "first", End: "last" };
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
  const scrolls = event.target.closest?.(".source, .tall") && event.key !== "ArrowLeft" && event.key !== "ArrowRight";
  if (scrolls) return;
  if (KEYS[event.key]) { event.preventDefault(); stop(); actions[KEYS[event.key]](); }
  if (event.key === " " && event.target.tagName !== "BUTTON") { event.preventDefault(); play(); }
});
for (const warp of [...new Set(W)].sort((p, q) => p - q)) only.append(make("option", `warp ${warp}`, { value: warp }));
document.querySelector(".matrices").style.gridTemplateColumns = `minmax(0, ${K * scale(K)}fr) minmax(0, ${N * scale(N)}fr)`;
$("workspace").hidden = !workspace;
readColours();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); show(now); });
show(Math.min(COUNT - 1, Number(/^#(\d+)$/.exec(location.hash)?.[1] ?? 1) - 1));
addEventListener("hashchange", () => show(Number(/^#(\d+)$/.exec(location.hash)?.[1] ?? now + 1) - 1));
