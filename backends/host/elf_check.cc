#include "sherd/backends/host/elf_check.h"

#include <elf.h>

#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "sherd/core/base/checked_math.h"
#include "sherd/core/base/file.h"
#include "sherd/core/base/status_macros.h"

namespace sherd::internal {
namespace {

#if defined(__x86_64__)
constexpr Elf64_Half kMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr Elf64_Half kMachine = EM_AARCH64;
#else
#error "Name this machine's ELF number here."
#endif

template <typename T>
absl::Status ReadInto(File& file, int64_t offset, absl::Span<T> values) {
  return file.ReadAt(offset,
                     absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()),
                                    values.size() * sizeof(T)));
}

absl::Status Unusable(const std::string& path, const std::string& why) {
  return absl::FailedPreconditionError(absl::StrCat(path, " ", why));
}

absl::Status CheckSegments(File& file, const Elf64_Ehdr& header,
                           uint64_t size) {
  std::vector<Elf64_Phdr> segments(header.e_phnum);
  const std::optional<uint64_t> table_end = CheckedAdd<uint64_t>(
      header.e_phoff, segments.size() * sizeof(Elf64_Phdr));
  if (!table_end || *table_end > size) {
    return Unusable(file.path(),
                    absl::StrCat("is truncated: it has ", size,
                                 " bytes, its program headers lie beyond"));
  }
  SHERD_RETURN_IF_ERROR(ReadInto(file, static_cast<int64_t>(header.e_phoff),
                                 absl::MakeSpan(segments)));
  for (const Elf64_Phdr& segment : segments) {
    const std::optional<uint64_t> end =
        CheckedAdd<uint64_t>(segment.p_offset, segment.p_filesz);
    if (!end || *end > size) {
      return Unusable(file.path(), absl::StrCat("is truncated: it has ", size,
                                                " bytes, a segment ends at ",
                                                end.value_or(UINT64_MAX)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSharedObject(const std::string& path) {
  SHERD_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                         FileSystem::Posix().OpenForRead(path));
  SHERD_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  Elf64_Ehdr header;
  if (size < static_cast<int64_t>(sizeof(header))) {
    return Unusable(path, absl::StrCat("is not a shared object: it has only ",
                                       size, " bytes"));
  }
  SHERD_RETURN_IF_ERROR(ReadInto(*file, 0, absl::MakeSpan(&header, 1)));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return Unusable(path,
                    "is not a shared object: it does not begin as an ELF "
                    "file does");
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_type != ET_DYN ||
      header.e_machine != kMachine ||
      header.e_phentsize != sizeof(Elf64_Phdr)) {
    return Unusable(
        path, absl::StrCat("is not a shared object for this machine "
                           "(ELF type ",
                           header.e_type, ", machine ", header.e_machine, ")"));
  }
  return CheckSegments(*file, header, static_cast<uint64_t>(size));
}

}  // namespace sherd::internal
