// Which weights dropout leaves (core/attention.h), a bit each, drawn where P is made: in each pass
// once.
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) gives four
// numbers a call, of four neighbouring keys of a query. A warp makes each call of its part of a
// tile once, and its lanes exchange bits: 8 calls a lane, 9 or 10 where fours begin within a tile.
#pragma once

#include "xgemm/attention/products.h"

namespace xgemm {
inline namespace XGEMM_FLAVOUR {

__device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

// The stream of a pass, as the kernels read it.
struct Stream {
  uint32_t key[2], least;
  uint64_t first;  // of query 0 and key 0 of a head
  int64_t keys;

  __device__ __forceinline__ Stream(const Attention& a, int64_t head) {
    const Dropout& d = a.dropout;
    const auto seed = static_cast<uint64_t>(d.seed_at ? *d.seed_at : d.seed);
    // From one lane, so that the compiler makes each round's keys in uniform registers.
    key[0] = __shfl_sync(0xffffffffu, static_cast<uint32_t>(seed), 0);
    key[1] = __shfl_sync(0xffffffffu, static_cast<uint32_t>(seed >> 32), 0);
    least = d.least;
    first =
        static_cast<uint64_t>((d.offset_at ? *d.offset_at : d.offset) + head * a.queries * a.keys);
    keys = a.keys;
  }
  // Of the number of query i and key j.
  __device__ __forceinline__ uint64_t at(int64_t i, int64_t j) const {
    return first + static_cast<uint64_t>(i * keys + j);
  }
  // Numbers 4 n to 4 n + 3.
  __device__ __forceinline__ void draw(uint32_t (&x)[4], uint64_t n) const {
    x[0] = static_cast<uint32_t>(n), x[1] = static_cast<uint32_t>(n >> 32), x[2] = x[3] = 0;
    uint32_t k0 = key[0], k1 = key[1];
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = static_cast<uint64_t>(x[0]) * 0xd2511f53u;
      const uint64_t b = static_cast<uint64_t>(x[2]) * 0xcd9e8d57u;
      x[0] = static_cast<uint32_t>(b >> 32) ^ x[1] ^ k0, x[1] = static_cast<uint32_t>(b);
      x[2] = static_cast<uint32_t>(a >> 32) ^ x[3] ^ k1, x[3] = static_cast<uint32_t>(a);
      k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
    }
  }
  // Bits of kCalls x 4 keys from number `from` on.
  template <int kCalls>
  __device__ __forceinline__ uint32_t left(uint64_t from) const {
    static_assert(kCalls <= 8);
    const auto four = [&](int call) {
      uint32_t x[4], bits = 0;
      draw(x, from / 4 + static_cast<uint64_t>(call));
#pragma unroll
      for (int w = 0; w < 4; ++w) bits |= x[w] >= least ? 1u << w : 0;
      return bits;
    };
    uint32_t bits = 0;
#pragma unroll 2
    for (int c = 0; c < kCalls; ++c) bits = bits >> 4 | four(c) << 28;
    const auto before = static_cast<int>(from % 4);  // of the first call
    if (before) bits = bits >> before | four(kCalls) << (32 - before);
    return bits >> (32 - 4 * kCalls);
  }
};

// Bits of the backward pass, which its first kernel draws and the others read: [head][tile of
// keys][16 keys][two queries] a word of 16 bits of each.
struct KeptBits {
  uint32_t* data = nullptr;
  int key_tiles = 0, query_tiles = 0;

  XGEMM_HD int64_t words(int64_t heads) const {
    return heads * key_tiles * query_tiles * (kTile * kTile / 32);
  }
  // Of a tile's keys from 16 n on, and queries from an even i on.
  __device__ __forceinline__ uint32_t& at(int64_t head, int tile, int n, int i) const {
    const int64_t row = (head * key_tiles + tile) * 4 + n;
    return data[row * (query_tiles * (kTile / 2)) + i / 2];
  }
};

// Of a tile whose rows are queries from i on, and whose kColumns columns are keys from j on, those
// of a thread's elements. A lane has half of a row first: of four that share two rows.
template <int kColumns>
struct QueriesKept {
  uint32_t bits = ~0u;

  __device__ __forceinline__ bool at(int e) const {
    constexpr int kEach = kColumns / 16;  // eights of columns in a half
    const int n = e / 4;
    return bits >> (n % kEach * 8 + n / kEach * 4 + e % 4) & 1;
  }
  __device__ __forceinline__ void draw(const Attention& a, int64_t head, int i, int j) {
    const Stream stream(a, head);
    bits = stream.left<kColumns / 8>(stream.at(i + row(), j + lane() / 2 % 2 * (kColumns / 2)));
    exchange();
  }
  // Half a row yet: exchange() follows, when the loads have had time.
  __device__ __forceinline__ void load(const KeptBits& from, int64_t head, int i, int tile) {
    const int mine = i + row(), right = lane() / 2 % 2, shift = mine % 2 * 16;
    const auto sixteen = [&](int n) { return from.at(head, tile, n, mine) >> shift & 0xffffu; };
    if constexpr (kColumns == kTile) bits = sixteen(2 * right) | sixteen(2 * right + 1) << 16;
    else bits = sixteen(0) >> (8 * right);
  }
  __device__ __forceinline__ void exchange() {
    const int q = lane() % 4;
    const uint32_t half = bits;
    bits = 0;
#pragma unroll
    for (int other = 0; other < 4; ++other) {
      const uint32_t its = __shfl_sync(0xffffffffu, half, lane() - q + other);
      bits |= (its >> (2 * q) & 0x03030303u) << (other / 2 * 4 + other % 2 * 2);
    }
  }

 private:
  static __device__ __forceinline__ int row() { return Place().row + lane() % 2 * 8; }
};

// Likewise of a tile whose rows are keys from 64 `tile` on, and whose columns are queries from i
// on. A lane has its warp's 16 keys of two queries first.
template <int kColumns>
struct KeysKept {
  uint32_t bits = ~0u;

  __device__ __forceinline__ bool at(int e) const {
    return bits >> (e / 4 + e / 2 % 2 * 8 + e % 2 * 16) & 1;
  }
  __device__ __forceinline__ void draw(const Attention& a, const KeptBits& to, int64_t head, int i,
                                       int tile) {
    const Stream stream(a, head);
    uint32_t two = 0;
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      const uint64_t from = stream.at(i + 2 * lane() + b, tile * kTile + 16 * warp());
      two |= (stream.left<4>(from) & 0xffffu) << (16 * b);
    }
    to.at(head, tile, warp(), i + 2 * lane()) = two;
    exchange(two);
  }
  __device__ __forceinline__ void load(const KeptBits& from, int64_t head, int i, int tile) {
    exchange(from.at(head, tile, warp(), i + 2 * lane()));
  }

 private:
  static __device__ __forceinline__ int warp() {
    return static_cast<int>(threadIdx.x) % kGroup / 32;
  }
  __device__ __forceinline__ void exchange(uint32_t two) {
    bits = 0;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      const uint32_t its = __shfl_sync(0xffffffffu, two, 4 * n + lane() % 4);
      bits |= (its >> (lane() / 4) & 0x01010101u) << n;
    }
  }
};

// What one weight is multiplied by.
__device__ __forceinline__ float factor_of_weight(const Attention& a, int64_t head, int64_t i,
                                                  int64_t j) {
  if (!a.dropout.on) return 1.f;
  const Stream stream(a, head);
  return stream.left<1>(stream.at(i, j)) & 1 ? a.dropout.factor : 0.f;
}

}  // namespace XGEMM_FLAVOUR
}  // namespace xgemm
