// The tensor core's instructions of a warp, in which its lanes meet: the last one to come does the
// work of all.
#include "emulator/machine.h"
#include "emulator/tensor_core.h"

namespace xgemm::simt {
namespace {

struct Rows {  // a lane of ldmatrix
  uint32_t* r;
  const char* row;
};

void load(void* const (&lanes)[32]) {
  for (int l = 0; l < 32; ++l)
    for (int m = 0; m < 4; ++m)
      std::memcpy(&static_cast<Rows*>(lanes[l])->r[m],
                  static_cast<Rows*>(lanes[8 * m + l / 4])->row + 4 * (l % 4), 4);
}

struct Registers {  // a lane of mma
  Half type;
  float* d;
  const uint32_t *a, *b;
};

void multiply(void* const (&lanes)[32]) {
  uint16_t a[16][16], b[8][16];
  float d[16][8];
  const auto each = [&](auto f) {
    for (int l = 0; l < 32; ++l) f(*static_cast<Registers*>(lanes[l]), l / 4, 2 * (l % 4));
  };
  each([&](const Registers& lane, int g, int c) {
    for (int q = 0; q < 2; ++q) {
      for (int h = 0; h < 2; ++h) {
        std::memcpy(&a[g + 8 * h][c + 8 * q], &lane.a[h + 2 * q], 4);
        d[g + 8 * h][c + q] = lane.d[2 * h + q];
      }
      std::memcpy(&b[g][c + 8 * q], &lane.b[q], 4);
    }
  });
  mma_steps(static_cast<Registers*>(lanes[0])->type, 16, 8, a, b, &d[0][0], 8);
  each([&](const Registers& lane, int g, int c) {
    for (int h = 0; h < 2; ++h)
      for (int e = 0; e < 2; ++e) lane.d[2 * h + e] = d[g + 8 * h][c + e];
  });
}

}  // namespace

void ldmatrix4(uint32_t (&r)[4], const void* row, Site at) {
  const void* pc = __builtin_return_address(0);
  const auto* p = static_cast<const char*>(row);
  {
    const Quiet quiet;
    expect_aligned(p, 16, pc);
    if (static_cast<size_t>(p - running->arena) >= kArena)
      fail("out of bounds: ldmatrix of " + thread_name(running->self) + " at " + place(pc) +
           " reads no shared memory");
    record({.what = What::shared_load, .bytes = 16, .pc = pc, .p = p});
    note_shared(*running, p, 16, false, pc);
  }
  Rows lane{r, p};
  together("ldmatrix", load, &lane, at);
}

void mma(Half type, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Site at) {
  Registers lane{type, d, a, b};
  record({.what = What::mma, .at = at});
  together("mma", multiply, &lane, at);
}

}  // namespace xgemm::simt
