// What memory holds at a step: found by doing all steps of its launch before it.
const COMING = 1, THERE = 2, READ = 3; // of a word; 0: nothing has been written there
const CODES = ["", "A", "B", "W"]; // of names: an operand's and, below 2^28, an element's number
const kOf = (name) => {
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

// Facts of a launch, found once.
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
