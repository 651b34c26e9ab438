// What a block does in the shared memory of another of its cluster.
#include "emulator/machine.h"

namespace xgemm::simt {

Block& peer(unsigned rank, const char* what, const Site& at) {
  Machine& m = machine();
  if (rank >= m.cluster)
    fail(std::string(what) + ": " + thread_name(running->self) + " means block " +
         std::to_string(rank) + " at " + place(at) + ", the cluster has " +
         std::to_string(m.cluster));
  return *m.here->blocks[rank];
}

void load_from_block(void* to, const void* smem, int bytes, unsigned rank, Site at) {
  const void* pc = __builtin_return_address(0);
  const Quiet quiet;
  const Hidden hidden;
  Block& b = *running;
  Block& from = peer(rank, "a load", at);
  const auto* p = static_cast<const char*>(smem);
  expect_aligned(p, static_cast<size_t>(bytes), pc);
  const auto offset = static_cast<size_t>(p - b.arena);
  if (offset >= kArena)
    fail("out of bounds: " + thread_name(b.self) + " at " + place(at) +
         " does not read where its block has shared memory");
  if (from.finished == from.threads)
    fail("out of bounds: " + thread_name(b.self) + " at " + place(at) +
         " reads a block of the cluster that has exited");
  record({.what = access(true, false), .bytes = bytes, .pc = pc, .p = p});
  const Clocks& clocks = use_clocks();
  note_peer_read(from, p, static_cast<size_t>(bytes), pc);
  from.read_by_others.resize(clocks.known.size());
  if (&from != &b) from.read_by_others[b.agent(b.self)] = clocks.now;
  from.read_at = at;
  std::memcpy(to, from.arena + offset, static_cast<size_t>(bytes));
}

}  // namespace xgemm::simt
