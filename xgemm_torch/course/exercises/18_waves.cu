//! title: Waves of a grid
//! kind: predict
//! ask blocks: A product of 4096 x 4096 by blocks of 128 x 128, two on each of 132
//!   multiprocessors. How many waves is that, begun ones counted as whole?
//! truth blocks: ceil(ceil(4096 / 128) ** 2 / (132 * 2))
//! wrong blocks: 8; two blocks run on a multiprocessor at a time
//! wrong blocks: 3; the last wave is not full, but takes its time
//! because blocks: 1024 blocks, 264 at a time: 3.88.
//! ask full: What share of the places in those waves is used, in percent?
//! truth full: 100 * ceil(4096 / 128) ** 2 / (4 * 132 * 2)
//! wrong full: 100; the last wave has 232 of 264
//! because full: 1024 of 1056.
//! ask odd: And at 2100 x 2100, in percent?
//! truth odd: 100 * ceil(2100 / 128) ** 2 / (2 * 132 * 2)
//! wrong odd: 97; that was 4096; here 289 tiles need a second wave
//! wrong odd: 51; partial tiles are blocks, too: 17 x 17, not 16.4 x 16.4
//! because odd: 289 blocks: one full wave, and a second one of 25. It takes nearly as long as 528
//!   blocks would.
//! ask slices: The blocks of that second wave are cut along K, so that all 264 places share the
//!   work evenly. How many times as fast can the product be at best?
//! truth slices: 2 / (ceil(2100 / 128) ** 2 / (132 * 2))
//! wrong slices: 2; the work is more than that of one wave
//! because slices: 289 / 264 = 1.09 waves of work in place of 2. Split-K and stream-K do this.
//! hint: Tiles are ceil(M / 128) x ceil(N / 128). A wave is as many as run at a time.
//! hint: A wave takes its time whether or not it is full: share = tiles / (waves x places).
// A GPU runs as many blocks at a time as fit: a wave. Blocks of a product take the same time, so
// that a grid takes as many times that as it has waves, the last of which may be nearly empty.
//
// By hand: 1536 x 1536 by tiles of 128 is 12 x 12 = 144 blocks. With one block on each of 132
// multiprocessors that is 132 and then 12: two waves, 144 of 264 places, 55%. A grid of 1408 x
// 1536, 132 blocks, takes half of the time.
//
// It is why speed over size is a saw, why libraries have tiles of many sizes, and why a table of
// measured times, not the size alone, chooses among them.
//
// There is no kernel to run here: the check computes.
