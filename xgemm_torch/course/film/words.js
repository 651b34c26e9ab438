// Says what happens in a step.
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
