#ifndef SHERD_BACKENDS_PLUGIN_H_
#define SHERD_BACKENDS_PLUGIN_H_

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <system_error>

#include "sherd/backends/backend_abi.h"
#include "sherd/backends/device_abi.h"

// Code that plugins share beside the structs of the ABI: errors, a guard
// against exceptions, communicators that are classes, tables, registration.
// Header-only, and depends on the standard library alone: a plugin needs
// nothing else of Sherd.

namespace sherd::internal {

// Plugins that are linked into this program, newest first. Filled before main,
// constant afterwards. `Table` is sherd_plugin_v0 or sherd_device_v0.
template <typename Table>
struct StaticPlugin {
  using Entry = const Table* (*)(const sherd_host_v0* host);

  explicit StaticPlugin(Entry entry) : entry(entry), next(Head()) {
    Head() = this;
  }

  static StaticPlugin*& Head() {
    static StaticPlugin* head = nullptr;
    return head;
  }

  const Entry entry;
  StaticPlugin* const next;
};

inline std::atomic<const sherd_host_v0*> host_of_plugins{nullptr};

// Returns whether the plugin works with `host`, and keeps it as its host if so.
inline bool AdoptHost(const sherd_host_v0* host) {
  // A host of another version expects another layout of the table.
  if (host->major != SHERD_ABI_MAJOR || host->minor != SHERD_ABI_MINOR) {
    return false;
  }
  host_of_plugins.store(host);
  return true;
}

}  // namespace sherd::internal

namespace sherd::plugin {

// The host that opened the plugin. Set before it calls any function of the
// table and valid forever; one for all plugins that are linked into a program.
// Any thread.
inline const sherd_host_v0& Host() {
  return *internal::host_of_plugins.load(std::memory_order_acquire);
}

// Fills `error` and returns `code`. Truncates text that does not fit.
inline sherd_code Fail(sherd_error_v0* error, sherd_code code, int peer,
                       const char* text) {
  error->peer = peer;
  std::strncpy(error->text, text, sizeof(error->text) - 1);
  error->text[sizeof(error->text) - 1] = '\0';
  return code;
}

// As Fail, after a system call that has just failed: appends the text of errno,
// and sets errno as the native code.
inline sherd_code FailErrno(sherd_error_v0* error, sherd_code code, int peer,
                            const char* text) {
  const int number = errno;
  char with_cause[sizeof(error->text)];
  std::snprintf(with_cause, sizeof(with_cause), "%s: %s", text,
                std::strerror(number));
  error->native_code = number;
  return Fail(error, code, peer, with_cause);
}

// Returns the code that `body` returns. An exception becomes an error, since
// none may cross the ABI: SHERD_RESOURCE if memory ran out, SHERD_SYSTEM if a
// system call failed, otherwise SHERD_INTERNAL.
template <typename Body>
sherd_code Guard(sherd_error_v0* error, const Body& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Fail(error, SHERD_RESOURCE, -1, "out of host memory");
  } catch (const std::system_error& e) {
    return Fail(error, SHERD_SYSTEM, -1, e.what());
  } catch (const std::exception& e) {
    return Fail(error, SHERD_INTERNAL, -1, e.what());
  } catch (...) {
    return Fail(error, SHERD_INTERNAL, -1, "unknown exception");
  }
}

// As Guard, for a function that cannot report an error: logs the exception as a
// warning.
template <typename Body>
void GuardQuietly(const Body& body) noexcept {
  sherd_error_v0 error = {};
  const sherd_code code = Guard(&error, [&]() -> sherd_code {
    body();
    return SHERD_OK;
  });
  if (code != SHERD_OK) Host().log(2, error.text);
}

// Objects of the plugin behind the opaque types of the ABI (sherd_comm_v0,
// sherd_peers_v0). No plugin defines these types: if two did, both linked into
// one program, the linker would merge them.

// The object behind a handle from MakeHandle.
template <typename Object, typename Handle>
Object& FromHandle(Handle* handle) {
  return *reinterpret_cast<Object*>(handle);
}

// Runs make(std::unique_ptr<Object>* made), guarded. With SHERD_OK `*handle`
// takes the object over, otherwise it becomes null.
template <typename Object, typename Handle, typename Make>
sherd_code MakeHandle(Handle** handle, sherd_error_v0* error,
                      const Make& make) noexcept {
  *handle = nullptr;
  return Guard(error, [&] {
    std::unique_ptr<Object> made;
    const sherd_code code = make(&made);
    if (code == SHERD_OK) *handle = reinterpret_cast<Handle*>(made.release());
    return code;
  });
}

template <typename Object, typename Handle>
void DeleteHandle(Handle* handle) noexcept {
  delete &FromHandle<Object>(handle);
}

// `table` with the size and the version at its beginning filled in.
template <typename Table>
constexpr Table WithHeader(Table table) {
  table.struct_size = sizeof(table);
  if constexpr (requires { table.major; }) {
    table.major = SHERD_ABI_MAJOR;
    table.minor = SHERD_ABI_MINOR;
  }
  return table;
}

// All operations, as bits of sherd_plugin_v0.operations.
inline constexpr uint64_t kAllOperations =
    (uint64_t{1} << SHERD_NUM_OPERATIONS) - 1;

// Bytes of one element.
constexpr uint64_t ElementSize(int32_t dtype) {
  switch (dtype) {
    case SHERD_UINT16:
    case SHERD_INT16:
    case SHERD_FLOAT16:
    case SHERD_BFLOAT16:
      return 2;
    case SHERD_UINT32:
    case SHERD_INT32:
    case SHERD_FLOAT32:
    case SHERD_COMPLEX32:
      return 4;
    case SHERD_UINT64:
    case SHERD_INT64:
    case SHERD_FLOAT64:
    case SHERD_COMPLEX64:
      return 8;
    case SHERD_COMPLEX128:
      return 16;
    default:
      return 1;
  }
}

// `table` with all reductions of sherd_host_v0.reduce, for plugins that leave
// the arithmetic to the host.
constexpr sherd_plugin_v0 WithHostReductions(sherd_plugin_v0 table) {
  constexpr uint32_t kLinear =
      1u << SHERD_SUM | 1u << SHERD_AVG | 1u << SHERD_PRODUCT;
  constexpr uint32_t kOrder = 1u << SHERD_MIN | 1u << SHERD_MAX;
  constexpr uint32_t kBits =
      1u << SHERD_BAND | 1u << SHERD_BOR | 1u << SHERD_BXOR;
  for (int dtype = 0; dtype < SHERD_NUM_DTYPES; ++dtype) {
    uint32_t& reductions = table.reductions[dtype];
    if (dtype == SHERD_BOOL) {
      reductions = (kLinear & ~(1u << SHERD_AVG)) | kOrder | kBits;
    } else if (dtype <= SHERD_INT64) {
      reductions = kLinear | kOrder | kBits;
    } else if (dtype <= SHERD_FLOAT64) {
      reductions = kLinear | kOrder;
    } else {
      reductions = kLinear;
    }
  }
  return table;
}

// The functions of a table as members of `Communicator`, guarded.
template <typename Communicator>
struct CommunicatorFunctions {
  static sherd_code Create(const sherd_comm_config_v0* config,
                           sherd_comm_v0** comm, sherd_error_v0* error) {
    return MakeHandle<Communicator>(
        comm, error, [&](std::unique_ptr<Communicator>* made) {
          return Communicator::Create(*config, made, error);
        });
  }

  static sherd_code Post(sherd_comm_v0* comm, const sherd_op_v0* op,
                         sherd_request_v0*, sherd_error_v0* error) {
    return Guard(
        error, [&] { return FromHandle<Communicator>(comm).Run(*op, error); });
  }

  static void Abort(sherd_comm_v0* comm) {
    GuardQuietly([&] { FromHandle<Communicator>(comm).Abort(); });
  }
};

// The table of a backend whose operations end in post, and whose communicators
// are objects of a class:
//
//   class Communicator {
//    public:
//     static sherd_code Create(const sherd_comm_config_v0& config,
//                              std::unique_ptr<Communicator>* made,
//                              sherd_error_v0* error);
//     ~Communicator();  // destroy
//     sherd_code Run(const sherd_op_v0& op, sherd_error_v0* error);  // post
//     void Abort();
//   };
//
// `table` has the rest: the name, the operations and the optional entries.
// Without a probe, communicators can be made on every machine.
template <typename Communicator>
constexpr sherd_plugin_v0 BackendTable(sherd_plugin_v0 table) {
  using Functions = CommunicatorFunctions<Communicator>;
  table = WithHeader(table);
  table.flags |= SHERD_COMPLETES_IN_POST;
  if (table.probe == nullptr) {
    table.probe = [](sherd_error_v0*) -> sherd_code { return SHERD_OK; };
  }
  table.create = Functions::Create;
  table.destroy = DeleteHandle<Communicator, sherd_comm_v0>;
  table.post = Functions::Post;
  table.abort = Functions::Abort;
  return table;
}

}  // namespace sherd::plugin

// SHERD_BACKEND_PLUGIN(kTable), SHERD_DEVICE_PLUGIN(kTable): once in a source
// file of the plugin, outside of all namespaces. Makes the table, which lives
// for ever, that of the shared object; or lists it for the loader where the
// same file is linked into a program (with alwayslink).
#define SHERD_BACKEND_PLUGIN(table) \
  SHERD_INTERNAL_PLUGIN(sherd_plugin_v0, sherd_get_plugin_v0, table)
#define SHERD_DEVICE_PLUGIN(table) \
  SHERD_INTERNAL_PLUGIN(sherd_device_v0, sherd_get_device_v0, table)

#ifdef SHERD_PLUGIN_BUILD
#define SHERD_INTERNAL_PLUGIN(type, name, table)                      \
  extern "C" __attribute__((visibility("default"))) const type* name( \
      const sherd_host_v0* host) {                                    \
    return ::sherd::internal::AdoptHost(host) ? &(table) : nullptr;   \
  }
#else
#define SHERD_INTERNAL_PLUGIN(type, name, table)                        \
  static ::sherd::internal::StaticPlugin<type> sherd_static_##name(     \
      [](const sherd_host_v0* host) -> const type* {                    \
        return ::sherd::internal::AdoptHost(host) ? &(table) : nullptr; \
      });
#endif

#endif  // SHERD_BACKENDS_PLUGIN_H_
