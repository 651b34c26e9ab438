#pragma once

#include <string>
#include <vector>

namespace xgemm {

// An operator of torch.ops.xgemm.*: its schema, and whether its operands may have any strides.
struct Operator {
  std::string schema;
  bool flexible_layout;
};
std::vector<Operator> operators();

// Of torch.ops: "xgemm", but in a copy of the library that was given another (namespace.cpp).
const std::string& operator_namespace();

// Whether the schemas were defined when the library was loaded, as torch from 2.12 on can. Then the
// kernels are registered, too, and a program without Python has the operators.
bool operators_defined();
// Why they could not be, as where another copy of the library is loaded; empty where all is well.
const std::string& load_error();

// Registers the CPU and CUDA kernels of operators whose schemas Python has defined. A second call
// does nothing.
void register_kernels();

// Gives a warning of Python's, or prints it where there is no Python. From any thread, whether it
// has Python's lock or not.
void warn(const std::string& text);

}  // namespace xgemm
