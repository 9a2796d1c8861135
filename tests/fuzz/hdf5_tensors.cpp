// Token datasets and weights in HDF5 files of any make: types, shapes, links
// and storage are drawn from the input. The bytes are HDF5's own, so that what
// is tried is this project's reading of them and not the library's.
#include <fuzzer/FuzzedDataProvider.h>
#include <hdf5.h>

#include <vector>

#include "checkpoint/tensors.h"
#include "data/token_source.h"
#include "fuzz/fuzz.h"

namespace lockstep {
namespace {

hid_t any_type(FuzzedDataProvider& input) {
  const hid_t choices[] = {H5T_STD_U8LE,  H5T_STD_I16BE,   H5T_STD_I64LE,
                           H5T_STD_U64LE, H5T_IEEE_F32LE,  H5T_IEEE_F64BE,
                           H5T_C_S1,      H5T_STD_REF_OBJ, H5T_STD_B8LE,
                           H5T_STD_I32LE, H5T_IEEE_F32BE,  H5T_UNIX_D32LE};
  return input.PickValueInArray(choices);
}

void add_dataset(hid_t file, const char* name, FuzzedDataProvider& input) {
  const int rank = input.ConsumeIntegralInRange(0, 4);
  std::vector<hsize_t> extents, limits, chunk;
  for (int axis = 0; axis < rank; ++axis) {
    // Some are far beyond what any memory holds.
    extents.push_back(input.ConsumeBool()
                          ? input.ConsumeIntegralInRange<hsize_t>(0, 9)
                          : input.ConsumeIntegral<hsize_t>() >> 2);
    chunk.push_back(input.ConsumeIntegralInRange<hsize_t>(1, 9));
    limits.push_back(H5S_UNLIMITED);
  }
  const bool chunked = rank > 0 && input.ConsumeBool();
  const hid_t space =
      H5Screate_simple(rank, extents.data(), chunked ? limits.data() : nullptr);
  const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
  if (chunked) H5Pset_chunk(properties, rank, chunk.data());
  if (!chunked && rank == 1 && input.ConsumeBool()) {
    H5Pset_external(properties, "/etc/hostname", 0, H5F_UNLIMITED);
  }
  const hid_t dataset = H5Dcreate2(file, name, any_type(input), space,
                                   H5P_DEFAULT, properties, H5P_DEFAULT);
  if (dataset >= 0) H5Dclose(dataset);
  H5Pclose(properties);
  if (space >= 0) H5Sclose(space);
}

void add_something(hid_t file, const char* name, FuzzedDataProvider& input) {
  switch (input.ConsumeIntegralInRange(0, 4)) {
    case 0:
      H5Lcreate_external("/etc/hostname", "/x", file, name, H5P_DEFAULT,
                         H5P_DEFAULT);
      return;
    case 1:
      H5Lcreate_soft(input.ConsumeBool() ? name : "/x", file, name, H5P_DEFAULT,
                     H5P_DEFAULT);
      return;
    case 2: {
      const hid_t group =
          H5Gcreate2(file, name, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
      if (group >= 0) H5Gclose(group);
      return;
    }
    default:
      return add_dataset(file, name, input);
  }
}

}  // namespace
}  // namespace lockstep

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data,
                                      std::size_t size) {
  using namespace lockstep;
  static const fuzz::InputFile file(".h5");
  static const ModelConfig model = [] {
    ModelConfig tiny;
    tiny.vocab_size = 3;
    tiny.d_model = tiny.d_ff = 2;
    tiny.num_layers = tiny.num_heads = 1;
    return tiny;
  }();
  static const ParameterStore store(model, 1);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  FuzzedDataProvider input(data, size);
  const hid_t made =
      H5Fcreate(file.path().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  if (made < 0) std::abort();
  add_something(made, "x", input);
  for (const Unit& unit : store.units()) {
    for (const Parameter& parameter : unit.members) {
      add_something(made, parameter.name.c_str(), input);
    }
  }
  H5Fclose(made);

  fuzz::expect_result_or_error([&] {
    const auto tokens = open_token_source(file.path() + ":/x");
    std::vector<std::int64_t> first(
        std::min<std::int64_t>(tokens->size(), 100));
    tokens->read(0, first);
    check_tokens(*tokens, 0, std::ssize(first), 50257);
  });
  fuzz::expect_result_or_error([&] {
    const hdf5::File weights(file.path(), hdf5::Access::read);
    check_tensors(weights, file.path(), store);
    for (const Unit& unit : store.units()) {
      std::vector<float> values(unit.elements);
      read_tensors(weights, unit, values);
    }
  });
  return 0;
}
