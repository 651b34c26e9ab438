// Loads a library, then a traced module and an AOTInductor package that call its operators, and
// writes what both make of the same operand.
#include <dlfcn.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/import.h>

#include <cstdio>
#include <fstream>

static void write(const char* path, const at::Tensor& t) {
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(t.const_data_ptr()), static_cast<long>(t.nbytes()));
}

int main(int, char** argv) {  // library, traced module, package, two files for the results
  if (!dlopen(argv[1], RTLD_NOW)) {
    std::fprintf(stderr, "%s\n", dlerror());
    return 2;
  }
  c10::InferenceMode guard;
  const at::Tensor x = at::arange(8 * 32, at::kFloat).view({8, 32}).div(64).sub(2);
  write(argv[4], torch::jit::load(argv[2]).forward({x}).toTensor());
  write(argv[5], torch::inductor::AOTIModelPackageLoader(argv[3]).run({x})[0]);
}
