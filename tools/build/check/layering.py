"""Who may depend on whom: an arrow back up is a defect.

core/base <- {core/net, core/process, core/tensor} <- core/comm <- core/sharding <- core/nn.
A backend sees the plugin ABI, its vendor's library and the rule of what calls
fit; shm and nccl, whose ranks share hosts, also core/process; the device
plugin also the mathematics that it shares with core/tensor. The loader, rpc,
serialization and testing see core and not one another (testing may take the
loader). tools sees everything, and nobody sees tools.
"""

import re
import xml.etree.ElementTree as ElementTree

_CORE = ["core/base", "core/net", "core/process", "core/tensor", "core/comm",
         "core/sharding", "core/nn"]
_ABI = "backends:plugin"
# Of //backends: the plugin ABI, target and headers. The rest of the package is the loader.
_PLUGIN_ABI = {"backend_abi", "call_fields", "device_abi", "plugin", "vendor_descriptors"}
_LOADER = "backends:loader"
# A package of nothing but parts of tests, which a query's XML does not say.
_FOR_TESTS = "//backends/emulated_gpu:"
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
# Vendor: the areas that may name it. Not listed: everybody may.
_VENDORS = {
    "com_google_protobuf": ["rpc", "serialization", "tools"],
    "spdlog": ["core/base"],
    "gloo": ["backends/*", "tools"],
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


def violation(source, target, testonly):
    """Why `source` must not depend on `target`, or None."""
    testonly = testonly or source.startswith(_FOR_TESTS)
    from_area = area(source)
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
        return "nobody depends on tools"
    if from_area not in _ALLOWED:
        return "%s is no known area: add it to tools/build/check/layering.py" % from_area
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
        testonly = kind.endswith("_test") or kind == "test_suite" or any(
            b.get("name") == "testonly" and b.get("value") == "true"
            for b in rule.findall("boolean"))
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
