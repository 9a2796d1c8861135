#include <algorithm>
#include <array>

#include "sync/bucketed.h"
#include "sync/flat.h"
#include "sync/fsdp.h"
#include "sync/gradient_sync.h"
#include "sync/local_sgd.h"
#include "sync/naive.h"
#include "sync/overlap.h"
#include "sync/replica.h"
#include "sync/sharded_optimizer.h"
#include "sync/zero1.h"
#include "sync/zero2.h"

namespace lockstep {
namespace {

using Factory = std::unique_ptr<GradientSync> (*)(const SyncContext&);
struct Entry {
  std::string_view name;
  Factory make;
};
template <class Strategy>
std::unique_ptr<GradientSync> make(const SyncContext& context) {
  return std::make_unique<Strategy>(context);
}

constexpr std::array registry = {
    Entry{"none", make<Replica>},
    Entry{"naive", make<Naive>},
    Entry{"flat", make<Flat>},
    Entry{"overlap", make<Overlap>},
    Entry{"bucketed", make<Bucketed>},
    Entry{"sharded-optimizer", make<ShardedOptimizer>},
    Entry{"zero1", make<Zero1>},
    Entry{"zero2", make<Zero2>},
    Entry{"fsdp", make<Fsdp>},
    Entry{"local-sgd", make<LocalSgd>},
};

}  // namespace

std::vector<std::string_view> gradient_sync_names() {
  std::vector<std::string_view> names;
  for (const Entry& entry : registry) names.push_back(entry.name);
  return names;
}

std::unique_ptr<GradientSync> make_gradient_sync(std::string_view name,
                                                 const SyncContext& context) {
  const auto* entry =
      std::find_if(registry.begin(), registry.end(),
                   [&](const Entry& e) { return e.name == name; });
  require(entry != registry.end(), "no gradient-sync module is called '{}'",
          name);
  require(name != "none" || context.comm.size() == 1,
          "--sync none on {} ranks would train {} different models; choose a "
          "strategy, such as --sync naive",
          context.comm.size(), context.comm.size());
  return entry->make(context);
}

}  // namespace lockstep
