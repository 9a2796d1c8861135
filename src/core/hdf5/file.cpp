#include "core/hdf5/library.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lockstep::hdf5 {
namespace {

// HDF5's own reasons are roundabout where there is a plain one.
void check_readable(const std::string& path) {
  // Without O_NONBLOCK a pipe of that name would be waited for.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  require(file >= 0, "cannot open {}: {}", path, std::strerror(errno));
  struct stat facts {};
  const bool regular = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode);
  close(file);
  require(regular, "cannot open {}: it is not a regular file", path);
  require(H5Fis_hdf5(path.c_str()) > 0,
          "cannot open {}: it is not an HDF5 file", path);
}

Id open_to_read(const std::string& path) {
  check_readable(path);
  const Id properties = property_id(H5Pcreate(H5P_FILE_ACCESS));
  // HDF5 locks a file to see that no one writes it. A lock that another holds
  // is an error; a file system that knows no locks does not stop a reader.
  hid_t file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, properties);
  if (file < 0 && reason().find("unable to lock") != std::string::npos) {
    require(reason().find(std::strerror(EAGAIN)) == std::string::npos,
            "cannot open {}: another process has it open for writing", path);
    H5Pset_file_locking(properties, /*use=*/false, /*ignore=*/true);
    file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, properties);
  }
  return {checked(file, "open " + path), H5Fclose};
}

Id in_memory() {
  constexpr std::size_t growth = 1 << 20;
  Id properties = property_id(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_fapl_core(properties, growth, /*backing_store=*/0);
  return properties;
}

Id copy_in_memory(const std::string& path) {
  check_readable(path);
  return {
      checked(H5Fopen(path.c_str(), H5F_ACC_RDWR, in_memory()), "open " + path),
      H5Fclose};
}

Id create_file(const std::string& path, Access access, std::size_t user_block) {
  const Id creation = ordered_attributes(H5P_FILE_CREATE);
  H5Pset_userblock(creation, user_block);
  const bool on_disk = access == Access::create;
  const Id properties =
      on_disk ? property_id(H5Pcreate(H5P_FILE_ACCESS)) : in_memory();
  // HDF5 would first read a file of that name.
  const std::string name = on_disk ? path : path + ", in memory";
  return {checked(H5Fcreate(name.c_str(), H5F_ACC_TRUNC, creation, properties),
                  "create " + path),
          H5Fclose};
}

Id open_file(const std::string& path, Access access, std::size_t user_block) {
  const Lock lock;
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // errors are ours to print
  switch (access) {
    case Access::read:
      return open_to_read(path);
    case Access::copy_in_memory:
      return copy_in_memory(path);
    default:
      return create_file(path, access, user_block);
  }
}

}  // namespace

File::File(const std::string& path, Access access, std::size_t user_block)
    : Group(open_file(path, access, user_block), path + ":/") {}

void File::flush() {
  const Lock lock;
  checked(H5Fflush(id_, H5F_SCOPE_LOCAL), "write " + name_);
}

std::span<const std::byte> File::bytes() const {
  const Lock lock;
  const std::string what = "take the bytes of " + name_;
  checked(H5Fflush(id_, H5F_SCOPE_LOCAL), what);
  // The user block, and the file proper. Memory may be larger.
  hsize_t user_block = 0;
  const Id creation = property_id(checked(H5Fget_create_plist(id_), what));
  checked(H5Pget_userblock(creation, &user_block), what);
  const auto proper = checked(H5Fget_file_image(id_, nullptr, 0), what);
  void* handle = nullptr;  // of a file in memory: where its address is
  checked(H5Fget_vfd_handle(id_, H5P_DEFAULT, &handle), what);
  return {
      *static_cast<std::byte**>(handle),
      static_cast<std::size_t>(user_block) + static_cast<std::size_t>(proper)};
}

}  // namespace lockstep::hdf5
