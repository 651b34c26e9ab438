// What the files of the native program share.
#pragma once

#include <functional>
#include <string>

namespace xgemm {

// Counts a check; says so when it is not good.
void expect(bool good, const std::string& what);
// Whether f throws an exception whose text holds `part`.
bool throws(const std::function<void()>& f, const std::string& part);

void test_aligned_copies();
void test_stream_k();
void test_k_parts();
void test_select();
void test_decompose();
void test_tuned_file();

}  // namespace xgemm
