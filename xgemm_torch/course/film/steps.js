"use strict";
// A film's steps, coded as film/data.py says: instructions of warps and landings of copies. Here is
// what a step touches. The files of this folder are one script, in the order of page.py.
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
