// Runs a learner's kernels on a GPU: C functions for gpu_worker.py, linked with the file that nvcc
// has compiled. Memory, streams and times are torch's; nothing here calls CUDA but the file's own
// launches. One problem at a time: exercise_case or exercise_product says which.
#include <memory>
#include <string>

#include "problem.h"

using namespace xgemm;

namespace {

std::unique_ptr<Problem> problem;
Gemm on_gpu;
std::string said;

}  // namespace

extern "C" {

// A problem in the words of problem.h; gives the bytes of its room.
size_t exercise_case(const char* words) {
  problem.reset(new Problem(Problem::read(words)));
  return problem->bytes();
}

// Its room on the host: what is copied to the GPU before, and back after the run.
void* exercise_room() { return problem->room(); }

// Where its copy on the GPU lies.
void exercise_place(void* room) { on_gpu = problem->in_room(static_cast<char*>(room)); }

// A product of whole matrices on the GPU, each row after row.
void exercise_product(int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* d) {
  on_gpu = {};
  on_gpu.m = m, on_gpu.n = n, on_gpu.k = k;
  on_gpu.a = {a, k, 1, 0}, on_gpu.b = {b, n, 1, 0}, on_gpu.d = {d, n, 1, 0};
}

size_t exercise_workspace(int sm, int sm_count) {
  Context context;
  context.device = {.sm = sm, .sm_count = sm_count};
  return workspace ? workspace(on_gpu, context) : 0;
}

// Enqueues the launches; null, or why they could not be.
const char* exercise_run(int sm, int sm_count, void* stream, void* memory, size_t bytes) {
  Context context;
  context.device = {.sm = sm, .sm_count = sm_count};
  context.stream = stream, context.workspace = memory, context.workspace_bytes = bytes;
  try {
    run(on_gpu, context);
    return nullptr;
  } catch (const std::exception& e) {
    said = e.what();
    return said.c_str();
  }
}

// What is in the room on the host beside what is expected, in JSON, as grade.cpp answers.
const char* exercise_compare() {
  said = compare(problem->g);
  return said.c_str();
}

}  // extern "C"
