"use strict";
// Draws a film: steps are instructions of warps and landings of copies, coded as film/data.py says.
// What memory holds at a step is found by doing all steps before it.
const film = JSON.parse(document.getElementById("film").textContent);
const [KIND, PLACE, MASK, BYTES, OPERAND, GMEM, SMEM, WAVES, IDEAL, WAYS] = Array(10).keys();
const { t: T, w: W, g: G, s: S, x: X } = film.steps;
const [M, N, K] = film.shape;
const SIZES = { A: [M, K], B: [K, N], D: [M, N] };
const COUNT = T.length;
const $ = (id) => document.getElementById(id);
const make = (tag, text = "", attributes = {}) => Object.assign(document.createElement(tag), { textContent: text }, attributes);
const kindOf = (n) => film.kinds[film.templates[T[n]][KIND]];
const launchOf = (n) => film.launches.findLastIndex((launch) => launch.first <= n);
const endOf = (l) => (l + 1 < film.launches.length ? film.launches[l + 1].first : COUNT);

// --- what a step touches ---------------------------------------------------------------------------
const lanesOf = (mask) => [...Array(32).keys()].filter((lane) => mask >>> lane & 1);
const LANES = film.templates.map((t) => lanesOf(t[MASK]));
const letter = (code) => (code ? String.fromCharCode(code) : "");

// Words of 4 bytes from `start` bytes on.
const words = (start, bytes) => {
  const list = [];
  for (let w = start >> 2; w <= (start + Math.max(bytes, 1) - 1) >> 2; ++w) list.push(w);
  return list;
};
const gmemOf = (n) => {
  const t = film.templates[T[n]];
  if (t[GMEM] < 0) return [];
  const each = Math.max(1, t[BYTES] >> 2);
  return film.patterns[t[GMEM]].map((p) => (p < 0 ? [] : Array.from({ length: each }, (_, i) => G[n] + p + i)));
};
const smemOf = (n) => {
  const t = film.templates[T[n]];
  if (t[SMEM] < 0) return [];
  return film.patterns[t[SMEM]].map((p) => (p < 0 ? [] : words(S[n] + p, t[BYTES])));
};
// A box's 16-byte chunks: [word of shared memory, word of the operand or -1].
const boxOf = (number, start, each) => {
  const [, base, c0, c1, c2, s0, s1, s2, b0, b1, b2, stride1, stride2, element, swizzle] = film.boxes[number];
  const row = b0 * element;
  for (let r = 0; r < b1 * b2; ++r) {
    const at1 = c1 + r % b1, at2 = c2 + Math.floor(r / b1);
    const inside = at1 >= 0 && at2 >= 0 && at1 < s1 && at2 < s2;
    for (let x = 0; x < row; x += 4) {
      let to = start + r * row + x;
      if (swizzle) to ^= to >> 3 & (swizzle === 128 ? 0x70 : 0x30);
      const at0 = c0 + x / element;
      each(to >> 2, inside && at0 >= 0 && at0 < s0 ? (base + at2 * stride2 + at1 * stride1 + at0 * element) >> 2 : -1);
    }
  }
};
// Words that a wgmma reads, by its descriptors.
const read = [];
const productOf = (number) => (read[number] ??= readBy(number));
const readBy = (number) => {
  const [a, aGroup, aRow, b, bGroup, bRow, columns] = film.products[number];
  const list = [];
  const matrix = (start, group, row, rows) => {
    for (let r = 0; r < rows; ++r)
      for (let half = 0; half < 2; ++half) {
        let at = start + (r >> 3) * group + r % 8 * row + half * 16;
        at ^= at >> 3 & (row === 128 ? 0x70 : 0x30);
        list.push(...words(at, 16));
      }
  };
  if (a >= 0) matrix(a, aGroup, aRow, 64);
  matrix(b, bGroup, bRow, columns);
  return list;
};
// Passes of a request through the banks, as csrc/emulator/traffic.cpp counts them.
const passesOf = (n) => {
  const t = film.templates[T[n]];
  const by = Array(32).fill(null);
  LANES[T[n]].forEach((lane, i) => { by[lane] = smemOf.cache[i]; });
  let together = t[BYTES] <= 4 ? 32 : t[BYTES] <= 8 ? 16 : 8;
  const same = (d) => by.every((w, l) => !w || !by[l ^ d] || w[0] === by[l ^ d][0]);
  if (t[BYTES] > 4 && film.kinds[t[KIND]] === "shared load" && (same(1) || same(2))) together *= 2;
  const passes = [];
  for (let first = 0; first < 32; first += together) {
    const set = new Set(by.slice(first, first + together).flatMap((w) => w ?? []));
    if (set.size) passes.push([...set].sort((p, q) => p - q));
  }
  return passes;
};
const sectorsOf = (list) => new Set(list.flat().map((w) => w >> 3));

// --- what memory holds -------------------------------------------------------------------------------
const EMPTY = 0, COMING = 1, THERE = 2, READ = 3;
const CODES = ["", "A", "B", "W"]; // of names: an operand's and, below 2^28, an element's number
const kOf = (name, n) => {
  const of = CODES[name >>> 28], at = name & 0xfffffff;
  return of === "A" ? at % K : of === "B" ? Math.floor(at / N) : -1;
};
// Copies that arrive at an mbarrier land later than at the wait that the trace has of them.
const arriving = new Set(film.templates.filter((t) => film.kinds[t[KIND]] === "mbarrier copies").map((t) => t[PLACE]));
const changes = new Map();
for (const [n, ...state] of film.changes) changes.set(n, [...(changes.get(n) ?? []), state]);

class State {
  constructor(l) {
    this.launch = film.launches[l];
    this.at = this.launch.first - 1;
    const bytes = Math.max(4, ...this.launch.arrays.map(([, offset, size]) => offset + size));
    this.names = new Uint32Array((bytes + 3) >> 2);
    this.status = new Uint8Array(this.names.length);
    this.loaded = { A: new Set(), B: new Set(), D: new Set(), W: new Set() };
    this.queues = new Map(); // by thread: elements in registers, words that cp.async will fill
    this.reached = { A: new Map(), B: new Map() }; // by thread: of each row or column, K so far
    this.bars = new Map();
    this.done = new Map(); // steps of each warp
    this.products = new Map(); // mma and wgmma of each warp
    this.first = new Map(); // a slot by its lowest word
    this.fills = []; // how often each has been filled
    this.sums = { requests: 0, wavefronts: 0, conflicts: 0, sectors: 0, barriers: 0, boxes: 0, products: 0 };
  }
  queue(thread) {
    if (!this.queues.has(thread)) this.queues.set(thread, { held: [], coming: [] });
    return this.queues.get(thread);
  }
  put(word, name, status) {
    this.names[word] = name;
    this.status[word] = status;
    const slot = this.first.get(word);
    if (slot !== undefined) this.fills[slot] = (this.fills[slot] ?? 0) + 1;
  }
  arrived(word) { if (this.status[word] === COMING) this.status[word] = THERE; }
  reads(thread, name) {
    const of = CODES[name >>> 28], k = kOf(name);
    if (k < 0) return;
    const at = name & 0xfffffff, map = this.reached[of];
    if (!map.has(thread)) map.set(thread, new Int16Array(of === "A" ? M : N));
    const line = of === "A" ? Math.floor(at / K) : at % N;
    const array = map.get(thread);
    array[line] = Math.max(array[line], k + 1);
  }
  apply(n) {
    const t = film.templates[T[n]], kind = film.kinds[t[KIND]], warp = W[n], lanes = LANES[T[n]];
    const of = letter(t[OPERAND]), code = CODES.indexOf(of) << 28;
    const thread = (i) => warp * 32 + lanes[i];
    const g = gmemOf(n), s = smemOf(n);
    if (kind !== "landing") this.done.set(warp, (this.done.get(warp) ?? 0) + 1);
    const moves = /^(global|shared|copy issue)/.test(kind);
    if (moves) {
      this.sums.requests += kind === "copy issue" && g.some((w) => w.length) ? 2 : 1;
      this.sums.wavefronts += t[WAVES];
      this.sums.conflicts += t[WAVES] - t[IDEAL];
      this.sums.sectors += sectorsOf(g).size;
    }
    if (kind.endsWith("barrier")) this.sums.barriers += 1;
    for (const list of g) for (const e of list) this.loaded[of].add(e);
    if (kind === "global load" && "AB".includes(of))
      g.forEach((list, i) => list.forEach((e) => {
        if (this.launch.named) this.queue(thread(i)).held.push(code + e);
        else this.reads(thread(i), (code + e) >>> 0);
      }));
    if (kind === "shared store")
      s.forEach((list, i) => list.forEach((w) =>
        this.put(w, this.launch.named ? this.queue(thread(i)).held.shift() ?? 0 : 0, THERE)));
    if (kind === "copy issue")
      s.forEach((list, i) => {
        list.forEach((w, x) => this.put(w, g[i]?.length ? code + g[i][x] : 0, COMING));
        this.queue(thread(i)).coming.push(list);
      });
    if (kind === "copy wait" && !arriving.has(t[PLACE]))
      lanes.forEach((_, i) => {
        const coming = this.queue(thread(i)).coming;
        for (let left = X[n]; left > 0 && coming.length; ) {
          const list = coming.shift();
          list.forEach((w) => this.arrived(w));
          left -= 4 * list.length;
        }
      });
    if (kind === "tma")
      boxOf(X[n], S[n], (w, e) => this.put(w, e < 0 ? 0 : code + e, COMING));
    if (kind === "landing" && X[n] >= 0) {
      this.sums.boxes += 1;
      boxOf(X[n], S[n], (w, e) => {
        this.arrived(w);
        if (e >= 0) this.loaded[letter(film.boxes[X[n]][0])].add(e);
      });
    }
    if (kind === "landing" && X[n] < 0)
      for (let lane = 0; lane < 32; ++lane) {
        const queue = this.queue(warp * 32 + lane);
        queue.coming.splice(0).forEach((list) => list.forEach((w) => this.arrived(w)));
      }
    if (kind === "shared load")
      s.forEach((list, i) => list.forEach((w) => {
        this.status[w] = READ;
        this.reads(thread(i), this.names[w]);
      }));
    if (kind === "wgmma" || kind === "mma") {
      this.sums.products += 1;
      this.products.set(warp, (this.products.get(warp) ?? 0) + 1);
      if (kind === "wgmma") for (const w of productOf(X[n])) this.status[w] = READ;
    }
    for (const [at, ...state] of changes.get(n) ?? []) this.bars.set(at, state);
    this.at = n;
  }
}

// --- facts of a launch, found once ----------------------------------------------------------------------
const ownersOf = (l) => { // the thread that stores each element of D
  const owners = new Int32Array(M * N).fill(-1);
  for (let n = film.launches[l].first; n < endOf(l); ++n)
    if (kindOf(n) === "global store" && letter(film.templates[T[n]][OPERAND]) === "D")
      gmemOf(n).forEach((list, i) => list.forEach((e) => { owners[e] = W[n] * 32 + LANES[T[n]][i]; }));
  return owners;
};
const slotsOf = (l) => { // the slot of the ring that each word belongs to, -1 for none
  const state = new State(l);
  const slot = new Int8Array(state.names.length).fill(-1);
  const by = [...new Set(film.boxes.map((b) => `${b.at(-2)} ${b.at(-1)}`))]
    .sort((p, q) => p.split(" ")[0] - q.split(" ")[0] || p.split(" ")[1] - q.split(" ")[1]);
  const ring = film.slots > 1, deep = film.tile[2];
  let count = 0, mixed = false;
  const set = (w, to) => {
    if (to < 0 || w >= slot.length) return;
    mixed ||= slot[w] >= 0 && slot[w] !== to;
    slot[w] = to;
    count = Math.max(count, to + 1);
  };
  let some = false;
  for (let n = film.launches[l].first; n < endOf(l); ++n) {
    const kind = kindOf(n);
    state.apply(n);
    if (kind === "tma") {
      some = true;
      const box = film.boxes[X[n]];
      boxOf(X[n], S[n], (w) => set(w, by.indexOf(`${box.at(-2)} ${box.at(-1)}`)));
    } else if (ring && (kind === "copy issue" || (kind === "shared store" && film.launches[l].named))) {
      some ||= kind === "copy issue";
      for (const w of smemOf(n).flat()) {
        const k = kOf(state.names[w]);
        if (k >= 0) set(w, Math.floor(k / deep) % film.slots);
        else film.halves.forEach(([begin, bytes]) => {
          const at = Math.floor((w * 4 - begin) / bytes);
          if (w * 4 >= begin && at < film.slots) set(w, at);
        });
      }
    }
  }
  if (mixed || count < 2) return null;
  const sizes = Array(count).fill(0);
  for (const s of slot) if (s >= 0) sizes[s] += 1;
  const first = new Map();
  for (let w = slot.length - 1; w >= 0; --w) if (slot[w] >= 0) first.set(slot[w], w);
  return { slot, count, sizes, first: new Map([...first].map(([s, w]) => [w, s])) };
};
const totalsOf = (l) => {
  const steps = new Map(), products = new Map();
  for (let n = film.launches[l].first; n < endOf(l); ++n) {
    if (kindOf(n) !== "landing") steps.set(W[n], (steps.get(W[n]) ?? 0) + 1);
    if (/mma$/.test(kindOf(n))) products.set(W[n], (products.get(W[n]) ?? 0) + 1);
  }
  return { steps, products };
};
const facts = film.launches.map(() => null);
const factsOf = (l) => (facts[l] ??= { owners: ownersOf(l), slots: slotsOf(l), ...totalsOf(l) });
const workspace = (() => {
  let most = 0;
  for (let n = 0; n < COUNT; ++n)
    if (letter(film.templates[T[n]][OPERAND]) === "W") for (const list of gmemOf(n)) for (const e of list) most = Math.max(most, e + 1);
  for (const [i, b] of film.boxes.entries()) if (letter(b[0]) === "W") boxOf(i, 0, (_, e) => { most = Math.max(most, e + 1); });
  return most;
})();

// --- drawing -----------------------------------------------------------------------------------------------
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

// --- words ---------------------------------------------------------------------------------------------------
const element = (of, e) => {
  if (of === "W") return `word ${e} of the workspace`;
  const columns = SIZES[of][1];
  return `${of}(${Math.floor(e / columns)}, ${e % columns})`;
};
const lanesText = (lanes) => (lanes.length === 32 ? "all 32 lanes" : lanes.length === 1 ? `lane ${lanes[0]}` :
  lanes.length === lanes.at(-1) - lanes[0] + 1 ? `lanes ${lanes[0]} to ${lanes.at(-1)}` : `${lanes.length} lanes`);
const banksText = (t) => `${t[WAVES]} wavefront${t[WAVES] > 1 ? "s" : ""}` +
  (t[WAVES] > t[IDEAL] ? ` where ${t[IDEAL]} would do: a conflict of ${t[WAYS]} ways` : ", no conflict");
const gmemText = (n, of) => {
  const list = gmemOf(n).filter((each) => each.length), all = new Set(list.flat());
  const touched = sectorsOf(list).size, ideal = Math.ceil(all.size / 8);
  const first = list[0][0], last = list.at(-1).at(-1);
  const ends = first === last ? element(of, first) : `${element(of, first)} to ${element(of, last)}`;
  return `${ends}: ${touched} sector${touched > 1 ? "s" : ""} of 32 bytes` + (touched > ideal ? `, where ${ideal} would hold the ${all.size} words` : "");
};
const say = (n, state) => {
  const t = film.templates[T[n]], kind = kindOf(n), of = letter(t[OPERAND]);
  const at = () => nameOf(state, S[n]);
  const each = t[BYTES] ? `${t[BYTES]} byte${t[BYTES] > 1 ? "s" : ""} each` : "";
  // What the first lane's first word holds, and the last lane's last.
  const held = () => {
    const list = smemOf(n), ends = [list[0][0], list.at(-1).at(-1)].map((w) => nameOfWord(state.names[w]));
    return ends[0] && ends[1] ? ` (${ends[0] === ends[1] ? ends[0] : `${ends[0]} to ${ends[1]}`})` : "";
  };
  const box = () => { const b = film.boxes[X[n]]; return `a box of ${b.slice(8, 11).join(" x ")} elements${b[0] ? ` of ${letter(b[0])}` : ""}, from (${b.slice(2, 5).join(", ")}) on,`; };
  const who = kind === "landing" ? "" : `Warp ${W[n]}, ${lanesText(LANES[T[n]])}: `;
  const what = {
    "global load": () => `load ${each} from global memory, ${gmemText(n, of)}.`,
    "global store": () => `store ${each} to global memory, ${gmemText(n, of)}.`,
    "shared load": () => `load ${each} from shared memory, from ${at()} on${held()}: ${banksText(t)}.`,
    "shared store": () => `store ${each} to shared memory, from ${at()} on${held()}: ${banksText(t)}.`,
    "copy issue": () => (of ? `cp.async of ${each} from ${gmemText(n, of)}; to ${at()}: ${banksText(t)}.` : `cp.async fills ${each} with zeros, at ${at()}.`),
    "copy wait": () => (arriving.has(t[PLACE]) ? "the thread's cp.asyncs are to arrive at an mbarrier." : X[n] ? `wait for cp.async: ${X[n]} bytes of each thread have landed.` : "wait for cp.async: nothing is outstanding."),
    barrier: () => "come to the barrier of the block.",
    tma: () => `ask TMA for ${box()} ${t[BYTES]} bytes to ${at()}.`,
    landing: () => (X[n] < 0 ? `The cp.asyncs of warp ${W[n]} land, and arrive at their mbarrier.` : `TMA: ${box()} lands at ${at()}.`),
    "mbarrier init": () => `set up an mbarrier at ${at()} for ${X[n]} arrivals a phase.`,
    "mbarrier arrival": () => `arrive at the mbarrier ${at()}${X[n] ? ` and announce ${X[n]} bytes` : ""}.`,
    "mbarrier copies": () => `arrive at the mbarrier ${at()} as soon as their cp.asyncs have landed.`,
    "mbarrier wait": () => `have waited at the mbarrier ${at()}: ${X[n]} phase${X[n] === 1 ? " has" : "s have"} ended.`,
    "named barrier": () => `come to named barrier ${X[n]}.`,
    mma: () => "mma: a product of 16 x 8 x 16 from registers, added to accumulators.",
    wgmma: () => {
      const [a, , , b, , , columns, tile, add] = film.products[X[n]];
      return `wgmma of 64 x ${columns} x 16, ${add ? "added to" : "begins"} accumulators ${tile}: A from ${a < 0 ? "registers" : nameOf(state, a)}, B from ${nameOf(state, b)}.`;
    },
    "wgmma commit": () => "close a group of wgmmas.",
    "wgmma wait": () => `wait until ${X[n] ? `${X[n]} group${X[n] > 1 ? "s" : ""} of wgmmas at most are` : "no wgmma is"} in flight.`,
  }[kind]();
  return who + what;
};

// --- the source -------------------------------------------------------------------------------------------------
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

// --- controls --------------------------------------------------------------------------------------------------------
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
