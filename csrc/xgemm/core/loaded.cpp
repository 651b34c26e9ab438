// Linked last (build_tools/library.py), so that this runs when the library is loaded and all its
// stages are in the registry: initializers run in the order of the objects.
#include "xgemm/core/stage.h"

namespace xgemm {
namespace {

[[maybe_unused]] const bool told = when_loaded && (when_loaded(), true);

}  // namespace
}  // namespace xgemm
