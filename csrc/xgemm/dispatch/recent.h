// A thread's last choices: programs ask for few problems, again and again, and finding one here
// takes a small part of the time of choosing anew.
#pragma once

#include <array>
#include <cstdint>

#include "xgemm/dispatch/select.h"

namespace xgemm {

class Recent {
 public:
  // What choose() gives, or gave when it was last asked for such a problem with these two numbers,
  // which stand for all else that it depends on. Of a problem count its sizes and how its operands
  // lie: strides, and addresses modulo kAlignment.
  template <class Choose>
  Pick pick(const Gemm& g, bool strict, int64_t first, int64_t second, Choose choose) {
    const Key key = key_of(g, strict, first, second);
    Set& set = sets_[hash(key) % sets_.size()];
    for (const Entry& e : set.entries)
      if (e.pick.stage && e.key == key) return e.pick;
    const Pick pick = choose();
    set.entries[set.oldest++ % set.entries.size()] = {key, pick};
    return pick;
  }

 private:
  static constexpr uintptr_t kAlignment = 128;  // of TMA, the greatest
  using Key = std::array<int64_t, 25>;
  struct Entry {
    Key key;
    Pick pick;  // no stage: nothing is kept here
  };
  struct Set {
    std::array<Entry, 4> entries;
    size_t oldest;
  };

  template <class T>
  static int64_t address(const View<T>& v) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(v.data) % kAlignment);
  }

  static Key key_of(const Gemm& g, bool strict, int64_t first, int64_t second) {
    return {first,        second, strict, g.m,          g.n,    g.k,    g.batch, g.split_k_size,
            g.a.rs,       g.a.cs, g.a.bs, address(g.a), g.b.rs, g.b.cs, g.b.bs,  address(g.b),
            g.c.rs,       g.c.cs, g.c.bs, address(g.c), g.d.rs, g.d.cs, g.d.bs,  address(g.d),
            g.beta != 0.f};
  }

  static size_t hash(const Key& key) {
    uint64_t x = 0;
    for (const int64_t word : key) x = (x + static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15u;
    return static_cast<size_t>(x >> 32);
  }

  std::array<Set, 32> sets_{};
};

}  // namespace xgemm
