// The namespace of the operators: torch.ops.xgemm, or what a tool has written in its place.
#include <string>

#include "ops.h"

namespace xgemm {
namespace {

// Two libraries of one process cannot define operators of one namespace. A kernel of the Hugging
// Face Hub must have a namespace of its own, for several versions of it may be loaded: build_tools/
// hub.py finds these words in a copy of the library, and writes the name behind them. The copies
// then differ, as they must: of two equal files the loader may map the first one again, and no
// initializer runs. Volatile, so that the name is read and not folded in.
struct Field {
  char words[40], name[64];
};
const volatile Field field{"xgemm_torch's operators are in:", "xgemm"};

}  // namespace

const std::string& operator_namespace() {
  static const std::string name = [] {
    std::string text;
    for (size_t i = 0; i < sizeof field.name && field.name[i]; ++i) text += field.name[i];
    return text;
  }();
  return name;
}

}  // namespace xgemm
