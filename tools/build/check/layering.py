"""Who may depend on whom: an arrow back up is a defect.

core/base <- {core/net, core/process, core/tensor} <- core/comm <- core/sharding <- core/nn.
A backend sees the plugin ABI, its vendor's library and the rule of what calls
fit; shm and nccl, whose ranks share hosts, also core/process; the device
plugin also the mathematics that it shares with core/tensor. The loader, rpc,
serialization and testing see core and not one another (testing may take the
loader). The emulated GPU of testing sees core, and of the backends that it doubles
the headers that say what to double. tools sees everything, and nothing sees tools.

Within a package its rooms, the folders of it, keep an order of their own: by the
#include lines of all that is not a test.
"""

import os
import re
import xml.etree.ElementTree as ElementTree

import tree

_CORE = ["core/base", "core/net", "core/process", "core/tensor", "core/comm",
         "core/sharding", "core/nn"]
_ABI = "backends:plugin"
# Of //backends: the plugin ABI, target and headers. The rest of the package is the loader.
_PLUGIN_ABI = {"backend_abi", "call_fields", "device_abi", "plugin", "vendor_descriptors"}
_LOADER = "backends:loader"
_EMULATED_GPU = "//testing/emulated_gpu:"
# Packages with parts of tests only, which a query's XML does not show.
_PARTS_OF_TESTS = ("//testing:", _EMULATED_GPU)
# Of backends, what it doubles: headers alone.
_DOUBLED = ["//backends/cuda:driver_api", "//backends/cuda:kernel_params",
            "//backends/nccl:nccl_api"]
# Headers of the standard library alone, which devices share with the host.
_PLAIN_TYPES = "//core/tensor:plain_types"
# Headers of the standard library alone, for backends that compare calls.
_OPERATIONS = "//core/comm:operations"

# Likewise of the standard library alone: processes and memory of one host.
_PROCESS = "//core/process:process"
_BACKENDS_OF_ONE_HOST = ("//backends/nccl:", "//backends/shm:")

# Area: the areas that its libraries may depend on, beside itself.
_ALLOWED = {
    "core/base": [],
    "core/net": _CORE[:1],
    "core/process": _CORE[:1],
    "core/tensor": _CORE[:1],
    "core/comm": _CORE[:4],
    "core/sharding": _CORE[:5],
    "core/nn": _CORE[:6],
    _ABI: [],
    _LOADER: _CORE + [_ABI],
    "backends/*": [_ABI],
    "rpc": _CORE,
    "serialization": _CORE,
    "testing": _CORE + [_LOADER],
    "//": _CORE + [_ABI, _LOADER, "backends/*", "rpc", "serialization"],
}
# Vendor: the areas that may name it. Without an entry every area may.
_VENDORS = {
    "com_google_protobuf": ["rpc", "serialization", "tools"],
    "spdlog": ["core/base"],
    "gloo": ["backends/*", "tools"],
    "grpc": ["tools"],
    "openmpi": ["backends/*", "tools"],
}
# Targets of tools/build that macros add.
_OF_MACROS = re.compile(r"//tools/build:(fuzz_replay_main|plugin.lds|optimised|language_.*)|"
                        r"//:(VERSION|LICENSE)")


def area(label):
    """The area of a label of this workspace, e.g. "core/comm"."""
    package, _, target = label[2:].partition(":")
    if package == "backends":
        return _ABI if target.split(".")[0] in _PLUGIN_ABI else _LOADER
    if package.startswith("backends/"):
        return "backends/*"
    for core in _CORE:
        if package == core or package.startswith(core + "/"):
            return core
    return package.split("/")[0] or "//"


def _same(source, target):
    """Whether both labels are of one area; each backend is one of its own."""
    if area(source) != area(target):
        return False
    if area(source) == "backends/*":
        return source.split(":")[0].split("/")[3] == target.split(":")[0].split("/")[3]
    return True


def _emulated_gpu_violation(source, target):
    allowed = [area(source)] + _CORE
    if target.startswith("@") or target in _DOUBLED or _OF_MACROS.fullmatch(target):
        return None
    if area(target) in allowed:
        return None
    return "the emulated GPU may depend on %s" % ", ".join(allowed + _DOUBLED)


def violation(source, target, testonly):
    """Why `source` must not depend on `target`, or None."""
    from_area = area(source)
    if source.startswith(_EMULATED_GPU):
        return _emulated_gpu_violation(source, target)
    if target.startswith("@"):
        vendor = target[1:].split("//")[0]
        if from_area in _VENDORS.get(vendor, [from_area]) or testonly:
            return None
        return "only %s may use @%s" % (", ".join(_VENDORS[vendor]), vendor)
    to_area = area(target)
    if _same(source, target) or _OF_MACROS.fullmatch(target) or from_area == "tools":
        return None
    if source.startswith("//backends/cuda:") and target == _PLAIN_TYPES:
        return None
    if from_area in ("backends/*", _ABI) and target == _OPERATIONS:
        return None
    if source.startswith(_BACKENDS_OF_ONE_HOST) and target == _PROCESS:
        return None
    if to_area == "tools":
        return "nothing depends on tools"
    if from_area not in _ALLOWED:
        return "%s is not a known area: add it to tools/build/check/layering.py" % from_area
    allowed = _ALLOWED[from_area]
    if testonly:
        allowed = allowed + _CORE + [_ABI, _LOADER, "backends/*", "testing"]
    if to_area in allowed:
        return None
    return "%s%s may depend on %s" % (
        from_area, " (tests)" if testonly else "",
        ", ".join(dict.fromkeys(allowed)) or "nothing of ours")


def edges(query_xml):
    """(source, target, testonly) for each direct dependency in a query's XML."""
    for rule in ElementTree.fromstring(query_xml).iter("rule"):
        kind = rule.get("class")
        testonly = (rule.get("name").startswith(_PARTS_OF_TESTS) or
                    kind.endswith("_test") or kind == "test_suite" or any(
                        b.get("name") == "testonly" and b.get("value") == "true"
                        for b in rule.findall("boolean")))
        for dependency in rule.findall("rule-input"):
            yield rule.get("name"), dependency.get("name"), testonly


def check(query_xml):
    found = []
    for source, target, testonly in edges(query_xml):
        if re.match(r"@(bazel_tools|local_config)", target):
            continue
        why = violation(source, target, testonly)
        if why:
            found.append("%s -> %s: %s" % (source, target, why))
    return sorted(found)


# ---- Rooms

# Package: its rooms, drawn from the lowest up. A room includes itself and what is
# left of its place; rooms in braces are side by side and do not see one another.
DRAWINGS = {
    "core/comm": "store <- calls <- {bootstrap, collective, flight} <- peers <- channel"
                 " <- group <- group_collectives",
    "core/nn": "{lookup, tree} <- {layers, plan, state, update} <- embedding",
    "core/sharding": "box <- spec <- plan <- transfer <- tensor <- {ops, state}",
    "core/tensor": "values <- strides <- device <- types <- {kernels, random}",
    "rpc": "{ids, wire} <- call <- {devices, ownership, transfer} <- {engine, link} <- agent",
    "serialization": "wire <- {metadata, safetensors} <- {manifest, store} <- archive"
                     " <- checkpoint <- kits",
    "testing": "{harness, matchers} <- fixtures <- {conformance, kits} <- faults <- programs",
}

# Package: files whose place is not that of their folder, with the reason; and
# headers at the top that no .cc of a room is named like. Without endings.
PLACES = {
    "core/comm": {
        # A call, and its implementation: all rooms but the store use them.
        # These are the targets :operations, :reduction and :backend.
        "calls": ["channel/backend", "channel/peer_memory", "collective/call_signature",
                  "collective/collective", "collective/operations", "collective/reduction",
                  "collective/reduction_kernels", "collective_options"],
        # The ranks and their state: channels query them, and groups create
        # them.
        "peers": ["group/failure_log", "group/membership", "group/peer_monitor"],
        # The typed calls are a base class of ProcessGroup. A double of RPC is beside
        # the store that it is made of, and fills an interface of the group.
        "group": ["collective/typed_collectives", "store/store_remote_access"],
        # Collectives that are made of a group's: the target :collectives.
        "group_collectives": ["collective/agreement", "collective/agreement_scope",
                              "collective/coalescer", "collective/object_collectives",
                              "collective/operation_label", "collective/tensor_collectives"],
    },
    "core/sharding": {"tensor": ["tensor_scatterer"]},
    "core/tensor": {
        # Values without memory of their own or with no more than bytes: devices and
        # kernels on strides speak of them, and tensors are made of all three.
        "values": ["device/device", "device/host_device", "float_types", "types/dtype",
                   "types/dtype_names", "types/shape", "types/storage"],
        "strides": ["kernels/strided_copy", "kernels/strided_loop"],
    },
    "rpc": {
        "ids": ["ownership/reference_id"],
        # Messages to other workers, whatever carries them.
        "wire": ["link/wire"],
        "call": ["call_context", "future", "handler"],
        "engine": ["worker_statistics"],
        # The user's side of references.
        "ownership": ["remote_ref"],
        "agent": ["rpc"],
    },
    "serialization": {"archive": ["archive"], "checkpoint": ["checkpoint"],
                      "store": ["checkpoint_files", "store"]},
    "testing": {
        # Parts of the harness: skips with a reason, and which tests are
        # distributed. Fixtures announce them. Ranks that are threads are below
        # a group, and so below fixtures. The fixtures' sources are
        # fixtures/process_fixture.cc and the like.
        "fixtures": ["distributed_test", "persistent_test", "threaded_test"],
        "harness": ["fixtures/announced_skip", "fixtures/distributed_tests",
                    "kits/rank_threads"],
        "kits": ["placed_fixture"],
        "matchers": ["matchers"],
        # A test program that the harness's test runs.
        "programs": ["harness/broken_tests"],
    },
}

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"sherd/([^"\n]+)"', re.MULTILINE)
# Tests, unless they have a header, as fixtures do; and programs that tests run.
_TEST = re.compile(r"(\w+_test|\w+_benchmark)\.cc$")
_TESTDATA = re.compile(r"(^|/)testdata/")


def rooms(drawing):
    """{room: how far up it is} of a drawing."""
    return {room: rank for rank, level in enumerate(drawing.split(" <- "))
            for room in level.strip("{}").split(", ")}


def _homes(paths, places):
    """{path: its room} of a package's files, both relative to it."""
    special = {stem: room for room, stems in places.items() for stem in stems}
    homes = {}
    for path in sorted(paths, key=lambda p: "/" not in p):  # Headers at the top come last.
        stem = os.path.splitext(path)[0]
        folder = path.rpartition("/")[0].split("/")[0]
        beside = [homes[p] for p in homes if "/" in p and p.endswith("/%s.cc" % stem)]
        homes[path] = special.get(stem) or folder or (beside or [""])[0]
    return homes


def room_violations(package, drawing, places, sources):
    """Why `sources`, {path: text}, all of `package`, do not keep to its drawing."""
    ranks = rooms(drawing)
    prefix = package + "/"
    headers = {os.path.basename(path) for path in sources if path.endswith(".h")}
    tests = {path for path in sources for match in [_TEST.search(path)]
             if match and match.group(1) + ".h" not in headers}
    texts = {path[len(prefix):]: text for path, text in sources.items()
             if path not in tests and not _TESTDATA.search(path)}
    homes = _homes(texts, places)
    found = []
    for path, room in homes.items():
        if room not in ranks:
            found.append("%s%s: %s is not drawn: give it a place in tools/build/check/layering.py"
                         % (prefix, path, "the room %s" % room if room else "its room"))
    for path, text in texts.items():
        for include in _INCLUDE.findall(tree.code_only(text)):
            own, other = homes[path], homes.get(include[len(prefix):])
            if not include.startswith(prefix) or own not in ranks or other not in ranks:
                continue
            if other != own and ranks[other] >= ranks[own]:
                found.append("%s%s -> %s: %s does not include %s; the order is %s" % (
                    prefix, path, include, own, other, drawing))
    stems = {os.path.splitext(path)[0] for path in texts}
    found += ["%s%s: is not there: take it out of tools/build/check/layering.py" % (prefix, stem)
              for listed in places.values() for stem in listed if stem not in stems]
    return sorted(found)


def check_rooms():
    """Of this repository."""
    packages = {path.rpartition("/")[0] for path in tree.files("BUILD.bazel")}
    sources = {}
    for path in tree.files(".cc", ".h", ".inc"):
        package = path.rpartition("/")[0]
        while package and package not in packages:
            package = package.rpartition("/")[0]
        if package in DRAWINGS:
            sources.setdefault(package, {})[path] = tree.read(path)
    return [message for package, drawing in DRAWINGS.items() for message in room_violations(
        package, drawing, PLACES.get(package, {}), sources.get(package, {}))]
