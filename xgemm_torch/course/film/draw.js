// Draws a step: matrices, banks, warps, slots, mbarriers.
let colours = {};
const readColours = () => {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["a", "b", "d", "w", "now", "bad", "empty", "other", "ink", "rule", "quiet", "paper"])
    colours[name] = style.getPropertyValue(`--${name}`).trim();
};
const colourOf = (of) => colours[of.toLowerCase()] ?? colours.other;
const ACROSS = 512; // words of the workspace in a row of its picture
const scale = (size) => Math.max(1, Math.min(12, Math.round(300 / size)));
const nameOfWord = (name) => (name >>> 28 && CODES[name >>> 28] !== "W" ? element(CODES[name >>> 28], name & 0xfffffff) : "");

const matrix = (id, of, rows, columns, state, now, near, shade) => {
  const canvas = $(id);
  const [sx, sy] = of === "W" ? [2, 2] : [scale(columns), scale(rows)];
  canvas.setAttribute("aria-label", `${of === "W" ? "workspace" : of}: ${state.loaded[of].size} elements ${of === "D" ? "stored" : "touched"}, ${now.size} of them now`);
  if (canvas.width !== columns * sx) canvas.width = columns * sx;
  if (canvas.height !== rows * sy) canvas.height = rows * sy;
  const to = canvas.getContext("2d");
  const cell = (e) => to.fillRect(e % columns * sx, Math.floor(e / columns) * sy, sx, sy);
  to.globalAlpha = 1;
  to.fillStyle = colours.empty;
  to.fillRect(0, 0, canvas.width, canvas.height);
  to.fillStyle = colourOf(of);
  if (shade) for (let e = 0; e < rows * columns; ++e) { to.globalAlpha = 0.55 * shade(e); if (to.globalAlpha > 0) cell(e); }
  to.globalAlpha = of === "D" ? 1 : 0.4;
  for (const e of state.loaded[of]) cell(e);
  to.globalAlpha = 0.7;
  to.fillStyle = colours.bad;
  for (const sector of near) for (let e = sector * 8; e < sector * 8 + 8 && e < rows * columns; ++e) if (!now.has(e)) cell(e);
  to.globalAlpha = 1;
  to.fillStyle = colours.now;
  for (const e of now) cell(e);
};

const drawMemory = (n, state) => {
  const t = film.templates[T[n]], kind = kindOf(n);
  let of = letter(t[OPERAND]);
  let now = new Set(gmemOf(n).flat()), near = sectorsOf(gmemOf(n));
  if ((kind === "tma" || kind === "landing") && X[n] >= 0) {
    of = letter(film.boxes[X[n]][0]);
    near = new Set();
    boxOf(X[n], S[n], (_, e) => { if (e >= 0) now.add(e); });
  }
  const none = new Set();
  const { owners, products } = factsOf(launchOf(n));
  const progress = (e) => {
    const thread = owners[e];
    if (thread < 0) return 0;
    const all = products.get(thread >> 5);
    if (all) return (state.products.get(thread >> 5) ?? 0) / all;
    const a = state.reached.A.get(thread)?.[Math.floor(e / N)] ?? 0, b = state.reached.B.get(thread)?.[e % N] ?? 0;
    return Math.min(a, b) / K;
  };
  for (const [name, [rows, columns]] of Object.entries(SIZES)) {
    const mine = of === name;
    matrix(`gmem-${name}`, name, rows, columns, state, mine ? now : none, mine ? near : none, name === "D" ? progress : null);
  }
  if (workspace) {
    const mine = of === "W";
    matrix("gmem-W", "W", Math.ceil(workspace / ACROSS), ACROSS, state, mine ? now : none, mine ? near : none, null);
  }
};

const COLUMN = 13; // pixels of a bank
const drawShared = (n, state) => {
  const rows = Math.ceil(state.names.length / 32), h = rows > 600 ? 2 : rows > 200 ? 4 : 8;
  const section = $("shared");
  section.hidden = !state.launch.arrays.length;
  if (section.hidden) return [];
  const canvas = $("smem"), to = canvas.getContext("2d");
  canvas.width = 32 * COLUMN;
  canvas.height = rows * h;
  const gap = h > 2 ? 1 : 0;
  const cell = (w) => to.fillRect(w % 32 * COLUMN, (w >> 5) * h, COLUMN - 1, h - gap);
  to.fillStyle = colours.empty;
  to.fillRect(0, 0, canvas.width, canvas.height);
  for (let w = 0; w < state.names.length; ++w) {
    const status = state.status[w];
    if (!status) continue;
    to.fillStyle = colourOf(CODES[state.names[w] >>> 28] || "other");
    to.globalAlpha = status === COMING ? 0.25 : status === THERE ? 0.8 : 0.5;
    cell(w);
  }
  to.globalAlpha = 1;
  const kind = kindOf(n);
  smemOf.cache = smemOf(n);
  let passes = kind === "wgmma" ? [productOf(X[n])] : [];
  let box = [];
  if ((kind === "tma" || kind === "landing") && X[n] >= 0) boxOf(X[n], S[n], (w) => box.push(w));
  if (/^shared|copy issue/.test(kind)) passes = passesOf(n);
  const bank = Array(32).fill(0);
  to.fillStyle = colours.now;
  for (const w of box) cell(w);
  for (const list of passes) {
    const here = Array(32).fill(0);
    for (const w of list) {
      to.fillStyle = here[w % 32]++ && kind !== "wgmma" ? colours.bad : colours.now;
      cell(w);
    }
    here.forEach((count, b) => { bank[b] = Math.max(bank[b], count); });
  }
  const top = $("banks"), bars = top.getContext("2d");
  top.width = 32 * COLUMN;
  top.height = 34;
  const most = Math.max(4, ...bank);
  bank.forEach((count, b) => {
    bars.fillStyle = kind !== "wgmma" && count > 1 ? colours.bad : colours.now;
    const tall = kind === "wgmma" ? 0 : Math.round(28 * count / most);
    bars.fillRect(b * COLUMN, 34 - tall, COLUMN - 1, tall);
    if (!tall) { bars.fillStyle = colours.rule; bars.fillRect(b * COLUMN, 32, COLUMN - 1, 2); }
  });
  const touched = [...box, ...passes.flat()];
  if (touched.length) {
    const lowest = touched.reduce((p, q) => Math.min(p, q)), holder = $("holder"), ratio = canvas.clientHeight / canvas.height || 1;
    const y = (lowest >> 5) * h * ratio;
    if (y < holder.scrollTop || y > holder.scrollTop + holder.clientHeight - 30) holder.scrollTop = Math.max(0, y - 30);
  }
  const ways = kind === "wgmma" || !passes.length ? 0 : Math.max(...bank);
  canvas.setAttribute("aria-label", `shared memory, ${rows} rows of 32 banks; ${new Set(touched).size} words touched` + (ways > 1 ? `, ${ways} different words in one bank` : ""));
  return touched;
};

const drawThreads = (n, state) => {
  const { steps } = factsOf(launchOf(n));
  const warps = Math.ceil(state.launch.threads / 32), h = warps > 16 ? 8 : 14;
  const canvas = $("threads"), to = canvas.getContext("2d");
  canvas.width = 416;
  canvas.height = warps * h;
  const active = new Set(LANES[T[n]]);
  for (let warp = 0; warp < warps; ++warp) {
    const all = steps.get(warp) ?? 0, part = all ? (state.done.get(warp) ?? 0) / all : 1;
    for (let lane = 0; lane < 32 && warp * 32 + lane < state.launch.threads; ++lane) {
      const on = warp === W[n] && active.has(lane);
      to.fillStyle = on ? colours.now : warp === W[n] ? colours.rule : colours.empty;
      to.fillRect(lane * 10, warp * h, 9, h - 1);
    }
    to.fillStyle = colours.empty;
    to.fillRect(330, warp * h, 86, h - 1);
    to.fillStyle = warp === W[n] ? colours.now : colours.other;
    to.fillRect(330, warp * h, Math.round(86 * part), h - 1);
  }
  canvas.setAttribute("aria-label", `${warps} warps of 32 lanes; of warp ${W[n]} ${active.size} lanes are active`);
};

const drawSlots = (n, state) => {
  const { slots } = factsOf(launchOf(n));
  $("ring").hidden = !slots;
  if (!slots) return;
  const tally = Array.from({ length: slots.count }, () => [0, 0, 0, 0]);
  const slice = Array(slots.count).fill(-1); // by what a slot's words hold, else by its fills
  slots.slot.forEach((s, w) => {
    if (s < 0) return;
    tally[s][state.status[w]] += 1;
    const k = state.names[w] && film.tile[2] > 1 ? kOf(state.names[w]) : -1;
    if (k >= 0) slice[s] = Math.max(slice[s], Math.floor(k / film.tile[2]));
  });
  const sliceOf = (s) => (slice[s] >= 0 ? slice[s] : state.fills[s] ? s + slots.count * (state.fills[s] - 1) : "");
  $("slots").replaceChildren(...tally.map((t, s) => {
    const row = make("tr");
    const share = (count) => `${Math.round(100 * count / slots.sizes[s])}%`;
    row.append(make("td", s), make("td", sliceOf(s)), make("td", share(t[COMING])), make("td", share(t[THERE])), make("td", share(t[READ])));
    return row;
  }));
};

const nameOf = (state, at) => {
  const found = state.launch.arrays.find(([, offset, size]) => at >= offset && at < offset + size);
  return found ? `${found[0]} + ${at - found[1]}` : `${at}`;
};
const drawBarriers = (n, state) => {
  $("bars").hidden = !state.bars.size;
  const now = new Set((changes.get(n) ?? []).map(([at]) => at));
  $("mbarriers").replaceChildren(...[...state.bars].sort(([p], [q]) => p - q).map(([at, [phase, pending, bytes]]) => {
    const row = make("tr", "", { className: now.has(at) ? "changed" : "" });
    row.append(make("td", nameOf(state, at)), make("td", phase), make("td", pending), make("td", bytes));
    return row;
  }));
};
