//! title: Wavefronts, by the stride
//! kind: predict
//! stage: smem_conflicted
//! ask column: How many wavefronts does one read of the line marked (column) take?
//! truth column: round(at("column", "shared_load").per_request)
//! wrong column: 1; rows are 32 words long, so that all 32 lanes are in one bank
//! wrong column: 2; count the banks: (32 * lane) % 32
//! because column: (32 * lane + 3) % 32 is 3 for every lane: one bank serves 32 different words.
//! ask padded: And (padded), with rows of 33 words?
//! truth padded: round(at("padded", "shared_load").per_request)
//! wrong padded: 32; 33 * lane % 32 is lane
//! because padded: (33 * lane + 3) % 32 differs for all lanes.
//! ask even: And (even), where lanes are two words apart?
//! truth even: round(at("even", "shared_load").per_request)
//! wrong even: 1; 2 * lane % 32 has 16 values only
//! wrong even: 16; lanes 0 and 16 share a bank, and only these two
//! because even: 2 * lane % 32 has 16 values, each for two lanes.
//! ask broadcast: And (broadcast)?
//! truth broadcast: round(at("broadcast", "shared_load").per_request)
//! wrong broadcast: 32; the same word is no conflict: it is sent to all lanes at once
//! because broadcast: A bank sends one word to as many lanes as ask for it.
//! ask vector: And (vector), 16 bytes a lane, all different?
//! truth vector: round(at("vector", "shared_load").per_request)
//! wrong vector: 1; 32 x 16 bytes are 512, and the banks give 128 at a time
//! wrong vector: 32; each pass serves 8 lanes, whose 32 words are in 32 banks
//! because vector: 512 bytes are four passes of 128: no conflict, just more bytes.
//! hint: Word w of shared memory is in bank w % 32. For each lane compute the word, then the
//!   bank.
//! hint: A wavefront serves one word of every bank. As many different words as the fullest bank
//!   has, so many wavefronts; lanes that ask for the same word count once.
// Shared memory has 32 banks, 4 bytes wide: word w is in bank w % 32. In one wavefront each bank
// gives one word, to as many lanes as want it. A warp's read takes as many wavefronts as there are
// different words in its fullest bank.
//
// By hand, for S[lane][0] with rows of 8 words: words 0, 8, 16, ... 248 are in banks 0, 8, 16, 24,
// 0,
// ...: 32 lanes over 4 banks, 8 words each, 8 wavefronts. The other 28 banks wait.
//
// A kernel that reads a column of a tile 32 words wide pays that 32 times over, and a stage of the
// ladder is slower for it than without any tile.
//
// Predict the wavefronts of the five marked reads of one warp. The check counts them.

#include "exercise.h"

__global__ void kernel(const Gemm g) {
  XGEMM_SHARED(S, float[32][32]);
  XGEMM_SHARED(P, float[32][33]);
  const int lane = threadIdx.x;
  for (int row = 0; row < 32; ++row) {
    S[row][lane] = g.b(row % g.k, lane);
    P[row][lane] = g.b(row % g.k, lane);
  }
  __syncthreads();
  const float* words = &S[0][0];
  float sum = S[lane][3];           // (column)
  sum += P[lane][3];                // (padded)
  sum += words[2 * lane];           // (even)
  sum += S[3][7];                   // (broadcast)
  sum += load4(words + 4 * lane).x;  // (vector)
  g.d(0, lane) = sum;
}

void run(const Gemm& g, const Context& context) {
  launch(kernel, {.grid = dim3(1), .block = dim3(32)}, context, g);
}
