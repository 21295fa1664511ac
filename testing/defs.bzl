"""sherd_distributed_test: a GoogleTest program whose tests run on several ranks.

    load("@sherd//testing:defs.bzl", "sherd_distributed_test")

    sherd_distributed_test(
        name = "reshard_test",
        srcs = ["reshard_test.cc"],
        backends = ["gloo"],
        world_size = 4,
        deps = ["@sherd"],
    )
"""

load("//tools/build:defs.bzl", "expand_table", "sherd_cc_library", "sherd_cc_test")

# Backends of hosts whose ranks are processes, and of GPUs, real and emulated.
BACKENDS_ON_HOSTS = [
    "gloo",
    "mpi",
    "shm",
]
BACKENDS_ON_GPUS = [
    "nccl",
    "nccl_emulated",
]

# How many ranks the conformance suite is run with.
CONFORMANCE_WORLD_SIZES = [1, 2, 3, 4, 5, 8]

# Backend: its plugin.
_PLUGINS = {
    "gloo": Label("//backends/gloo:libsherd_backend_gloo.so"),
    "mpi": Label("//backends/mpi:libsherd_backend_mpi.so"),
    "nccl": Label("//backends/nccl:libsherd_backend_nccl.so"),
    "shm": Label("//backends/shm:libsherd_backend_shm.so"),
}

# Backends whose ranks are threads of the test program, and are linked into it.
_THREADS = {"local": Label("//backends/local")}

# What replaces the backend in a test's name: that backend, on emulated GPUs, on
# any machine.
_EMULATED = {"nccl_emulated": "nccl"}

# The CUDA driver and NCCL of a machine that has no GPU.
_EMULATOR = Label("//testing/emulated_gpu:libsherd_emulated_gpu.so")

# Tests may name GPUs by number up to this.
_LEAST_EMULATED = 4

# Backends whose ranks must be started by a launcher.
_LAUNCHERS = {"mpi": "mpirun"}

# Backends that need a GPU of its own for each rank.
_GPU_BACKENDS = ["nccl"]

# What "nccl" may choose from for host memory.
_HOST_PARTS = ["gloo", "shm"]

# The plugin for the devices of such a backend.
_DEVICE_PLUGIN = Label("//backends/cuda:libsherd_device_cuda.so")

_RPC = Label("//rpc")

# More are not asked for: a machine with fewer cores runs such a test alone.
_MAX_CPUS = 4

_MAX_WORLD_SIZE = 256

_MAX_GPUS = 64

# ---- The arguments

def _check_numbers(name, what, numbers, least, most):
    for number in numbers:
        if type(number) != "int":
            fail("%s: %s %r, expected a number" % (name, what, number))
        if number < least or number > most:
            fail("%s: %s %d, expected %d to %d" % (name, what, number, least, most))

def _world_sizes(name, world_size, world_sizes):
    if world_size != None and world_sizes != None:
        fail("%s: give world_size or world_sizes, not both" % name)
    if world_sizes == None:
        world_sizes = [4 if world_size == None else world_size]
    elif type(world_sizes) != "list":
        fail("%s: world_sizes %r, expected a list; world_size is for one" % (name, world_sizes))
    if not world_sizes:
        fail("%s: world_sizes is empty: no test would run" % name)
    _check_numbers(name, "world size", world_sizes, 1, _MAX_WORLD_SIZE)
    _check_no_twins(name, "world_sizes", world_sizes)
    return world_sizes

def _check_no_twins(name, what, values):
    for i, value in enumerate(values):
        if value in values[:i]:
            fail("%s: %s names %s twice" % (name, what, value))

def _check_backends(name, backends, plugins):
    if type(backends) != "list":
        fail("%s: backends %r, expected a list of names" % (name, backends))
    if not backends:
        fail("%s: backends is empty: no test would run" % name)
    _check_no_twins(name, "backends", backends)
    known = sorted(list(_PLUGINS) + list(_THREADS) + list(_EMULATED))
    for backend in backends:
        if backend not in known and backend not in plugins:
            fail("%s: Backend %s not supported! There are: %s; name the plugin of any other one with plugins = {\"%s\": \"//its:libsherd_backend_%s.so\"}" %
                 (name, backend, ", ".join(known), backend, backend))

def _check_launcher(name, launcher, backends):
    if launcher not in [None, "mpirun"]:
        fail("%s: launcher %r, expected \"mpirun\" or None" % (name, launcher))
    for backend in backends:
        if launcher and backend in _THREADS:
            fail("%s: launcher \"%s\" starts processes, but ranks of the backend %s are threads" % (name, launcher, backend))

def _gpus(name, gpus, backend, ranks):
    """Number of GPUs that one target needs."""
    own = ranks if _EMULATED.get(backend, backend) in _GPU_BACKENDS else 0
    if gpus == None:
        return own
    _check_numbers(name, "gpus", [gpus], 0, _MAX_GPUS)
    if gpus < own:
        fail("%s: gpus = %d, but %d ranks of the backend %s need one each" % (name, gpus, ranks, backend))
    return gpus

# ---- Plugins

def _parts(label):
    """Repository ("" for the main one), package and name of a plugin's label."""
    if type(label) == "string" and hasattr(native, "package_relative_label"):
        label = native.package_relative_label(label)
    if type(label) == "Label":
        repository = label.repo_name if hasattr(label, "repo_name") else label.workspace_name
        return repository, label.package, label.name

    # Before Bazel 6.1 only this resolves a label of the calling BUILD file.
    repository = native.repository_name().lstrip("@")
    if label.startswith("@"):
        repository, _, label = label.lstrip("@").partition("//")
        label = "//" + label
    if not label.startswith("//"):
        return repository, native.package_name(), label.lstrip(":")
    package, _, target = label[2:].partition(":")
    return repository, package, target or package.split("/")[-1]

def _directories(repository, package):
    """Where a test finds the package's files, from its working directory."""
    if not repository:
        return [package or "."]

    # With and without --legacy_external_runfiles.
    return [
        "%s/%s/%s" % (parent, repository, package)
        for parent in ("..", "external")
    ]

def _plugin_directories(name, labels):
    """For SHERD_PLUGIN_PATH. `labels`: {backend: label of its plugin}, "" for that of devices."""
    directories = []
    for backend, label in labels.items():
        repository, package, target = _parts(label)
        if backend and target != "libsherd_backend_%s.so" % backend:
            fail("%s: the plugin of the backend %s is %s, expected a target libsherd_backend_%s.so: it is found by that name" %
                 (name, backend, target, backend))
        for directory in _directories(repository, package):
            if directory not in directories:
                directories.append(directory)
    return directories

# ---- One target

def _tags(backend, ranks, gpus):
    tags = ["backend-" + backend, "cpu:%d" % min(ranks, _MAX_CPUS), "distributed"]
    if not gpus or backend in _EMULATED:
        return tags
    tags += ["exclusive", "gpu", "requires-gpu-nvidia"]
    if gpus > 1:
        tags.append("multi-gpu")
    return tags

def _env(backend, ranks, gpus, launcher, rpc, directories):
    env = {
        "SHERD_TEST_BACKEND": _EMULATED.get(backend, backend),
        "SHERD_TEST_WORLD_SIZE": str(ranks),
    }
    if backend in _EMULATED:
        repository, package, target = _parts(_EMULATOR)
        emulator = "%s/%s" % (_directories(repository, package)[0], target)
        env.update({
            "SHERD_CUDA_LIBRARY": emulator,
            "SHERD_EMULATED_GPUS": str(max(gpus, _LEAST_EMULATED)),
            "SHERD_NCCL_LIBRARY": emulator,
        })
    if rpc:
        env["SHERD_TEST_RPC"] = "1"
    if directories:
        env["SHERD_PLUGIN_PATH"] = ":".join(directories)
    if gpus:
        env["SHERD_TEST_GPUS"] = str(gpus)
    if launcher or backend in _LAUNCHERS:
        env["SHERD_TEST_LAUNCHER"] = launcher or _LAUNCHERS[backend]
    return env

def sherd_distributed_test(
        name,
        srcs,
        world_size = None,
        world_sizes = None,
        backends = ["gloo"],
        gpus = None,
        deps = [],
        copts = [],
        data = [],
        env = {},
        launcher = None,
        plugins = {},
        rpc = False,
        size = "medium",
        tags = [],
        visibility = None,
        **kwargs):
    """One test per backend and world size, and a test_suite of them all.

    The tests are called <name>_<backend>_<n>ranks, the suite <name>. Sources
    use SHERD_DIST_TEST_F of "sherd/testing/distributed_test.h" and the fixtures
    beside it; main() and the harness are linked. Fixtures that leave
    world_size() alone get the target's.

    Ranks are processes, on the backend "local" threads: that one is for
    ThreadedDistributedTest.

    Tags, for --test_tag_filters: distributed, backend-<backend>, cpu:<n>; with
    GPUs also gpu, requires-gpu-nvidia, exclusive (no two such tests of one
    build at a time) and, with several, multi-gpu.

    Args:
      name: of the suite.
      srcs: sources, compiled once.
      world_size: number of ranks, 1 to 256; 4 if world_sizes is not given
        either.
      world_sizes: several of them.
      backends: names of collective backends: gloo, shm, mpi, nccl, local, and
        those of `plugins`. Where an optional one is not installed, its tests
        are skipped. nccl_emulated is nccl with GPUs that are emulated: it runs
        on any machine, and needs none.
      gpus: how many GPUs the test needs on its machine, in all; where there are
        fewer it is skipped. By default one per rank with backends on GPUs
        (nccl), otherwise none. Its ranks see no other GPUs.
      deps: libraries under test.
      copts: compiler options of the sources.
      data: as for cc_test.
      env: as for cc_test.
      launcher: "mpirun", or None: the harness starts the ranks itself, except
        with backends that need their launcher (mpi).
      plugins: {backend: label of libsherd_backend_<backend>.so}, for backends
        that are not Sherd's. All tests can load all of them.
      rpc: links @sherd//rpc, which WithComms{.init_rpc = true} starts; tests fail
        if it is missing all the same, instead of being skipped.
      size: as for cc_test.
      tags: further tags of the tests.
      visibility: of the tests and the suite.
      **kwargs: as for cc_test: timeout, shard_count, flaky, args, ...
    """
    world_sizes = _world_sizes(name, world_size, world_sizes)
    _check_backends(name, backends, plugins)
    _check_launcher(name, launcher, backends)
    if type(rpc) != "bool":
        fail("%s: rpc %r, expected True or False" % (name, rpc))

    sherd_cc_library(
        name = name + "_cases",
        testonly = True,
        srcs = srcs,
        copts = copts,
        tags = ["manual"],
        visibility = ["//visibility:private"],
        deps = deps + [Label("//testing:distributed_test_main")] +
               ([_RPC] if rpc else []),
        alwayslink = True,
    )
    tests = []
    for backend in backends:
        labels = dict(plugins)
        real = _EMULATED.get(backend, backend)
        if real in _PLUGINS and real not in plugins:
            labels[real] = _PLUGINS[real]
        if real in _GPU_BACKENDS:
            for host in _HOST_PARTS:
                labels[host] = labels.get(host, _PLUGINS[host])
        if real in _GPU_BACKENDS or gpus:
            labels[""] = _DEVICE_PLUGIN
        directories = _plugin_directories(name, labels)
        for ranks in world_sizes:
            tests.append("%s_%s_%dranks" % (name, backend, ranks))
            needed = _gpus(name, gpus, backend, ranks)
            test_env = _env(backend, ranks, needed, launcher, rpc, directories)
            test_env.update(env)
            sherd_cc_test(
                name = tests[-1],
                size = size,
                data = data + labels.values() + (
                    [_EMULATOR] if backend in _EMULATED else []
                ),
                env = test_env,
                tags = tags + _tags(backend, ranks, needed),
                visibility = visibility,
                deps = [":%s_cases" % name] + (
                    [_THREADS[backend]] if backend in _THREADS else []
                ),
                **kwargs
            )
    native.test_suite(
        name = name,
        # "manual" on a suite too: it is not part of "//...".
        tags = ["manual"] if "manual" in tags else [],
        tests = [":" + t for t in tests],
        visibility = visibility,
    )

def sherd_distributed_tests(tests, folder = "", **kwargs):
    """Several sherd_distributed_tests that share what they need, as a table.

        sherd_distributed_tests(
            backends = ["gloo"],
            tests = {
                "transfer/move_failures_test": {"world_size": 3},
                "transfer/move_memory_test": {},
                "transfer/move_pages_test": {"backends": ["shm"]},
            },
            world_size = 4,
            deps = [":transfer"],
        )

    Each has the targets and the suite of its own sherd_distributed_test.

    Args:
      tests: {name: arguments of its own}, as for sherd_distributed_test. They
        take the place of those that all share; world_size and world_sizes take
        each other's. Without srcs of its own, NAME's source is folder/NAME.cc.
      folder: of the sources, in this package.
      **kwargs: what all share, as for sherd_distributed_test.
    """
    expand_table(
        sherd_distributed_test,
        "sherd_distributed_tests",
        tests,
        folder,
        kwargs,
        [["world_size", "world_sizes"]],
    )
